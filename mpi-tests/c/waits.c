/* A constructor, which has the loader's lock, waits for a mutex whose owner uses a registry for the first
 * time in its thread. Ends by SIGALRM where pinyard waits for the loader there.
 *
 *   waits PLUGIN       PLUGIN: this file, compiled with -DPLUGIN
 */
#include <stdio.h>

#ifdef PLUGIN
void opened_while_another_has_the_mutex(void);
__attribute__((constructor)) static void opened(void)
{
    opened_while_another_has_the_mutex();
}
#else
#include <dlfcn.h>
#include <pinyard.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void opened_while_another_has_the_mutex(void);

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t in_constructor;
static pny_registry registry;

static int register_memory(void *user, void *address, size_t length, pny_access access, struct pny_key *key)
{
    (void)user, (void)address, (void)length, (void)access;
    memset(key, 0, sizeof *key);
    return 0;
}

static int deregister_memory(void *user, const struct pny_key *key, void *address, size_t length)
{
    (void)user, (void)key, (void)address, (void)length;
    return 0;
}

static void use(void)
{
    enum { LENGTH = 65536 };
    void *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct pny_lease lease;

    memset(&lease, 0, sizeof lease);
    if (memory == MAP_FAILED || pny_get(registry, memory, LENGTH, PNY_LOCAL_WRITE, &lease) != PNY_OK ||
        pny_put(&lease) != PNY_OK) {
        fprintf(stderr, "pny_get: %s\n", pny_last_error());
        exit(1);
    }
    munmap(memory, LENGTH);
}

void opened_while_another_has_the_mutex(void)
{
    pthread_barrier_wait(&in_constructor);
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
}

static void *has_the_mutex(void *none)
{
    pthread_mutex_lock(&mutex);
    pthread_barrier_wait(&in_constructor);
    for (int round = 0; round < 100; round++)
        use();
    pthread_mutex_unlock(&mutex);
    return none;
}

int main(int count, char **words)
{
    struct pny_backend_ops ops = {.size = sizeof ops, .register_memory = register_memory, .deregister_memory = deregister_memory};
    pny_registry_config config = {.size = sizeof config, .ops = &ops};
    pthread_t thread;

    if (count < 2 || pny_registry_create(&config, &registry) != PNY_OK) {
        fprintf(stderr, "pny_registry_create: %s\n", pny_last_error());
        return 1;
    }
    use();
    alarm(60);
    pthread_barrier_init(&in_constructor, NULL, 2);
    if (pthread_create(&thread, NULL, has_the_mutex, NULL) != 0 || dlopen(words[1], RTLD_NOW) == NULL)
        return 1;
    pthread_join(thread, NULL);
    pny_registry_destroy(registry);
    puts("completed");
    return 0;
}
#endif
