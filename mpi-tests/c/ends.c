/* A process ends with the last of its program's threads, whatever threads pinyard has (pthread_exit(3)). Each
   case in a child, which says by its exit status what it should. */
#include "registry.h"
#include <dirent.h>
#include <dlfcn.h>
#include <pinyard.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH ((size_t)65536)

static int pin(void *user, void *address, size_t length, pny_access access, pny_key *key) {
    static uint64_t next;
    (void)user, (void)address, (void)length, (void)access;
    key->lkey = __atomic_add_fetch(&next, 1, __ATOMIC_RELAXED);
    return 0;
}

static int unpin(void *user, const pny_key *key, void *address, size_t length) {
    (void)user, (void)key, (void)address, (void)length;
    return 0;
}

static unpins *deregisters = unpin;

static void or_say(pny_status status) {
    if (status == PNY_OK) return;
    printf("%s\n", pny_last_error());
    fflush(stdout);
    _exit(2);
}

static pny_registry make_registry_by(creates *create) {
    pny_registry made;
    or_say(registry_over(create, "none", pin, deregisters, &made));
    return made;
}

static pny_registry make_registry(void) { return make_registry_by(pny_registry_create); }

static void use(pny_registry registry) {
    pny_lease lease;
    void *at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    or_say(pny_get(registry, at, LENGTH, PNY_LOCAL_READ, &lease));
    or_say(pny_put(&lease));
}

static void at_exit(void) {
    /* What exit(3) calls has room, and takes signals. */
    volatile char room[1 << 20];
    sigset_t mask;
    room[0] = 1;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    if (room[0] != 1 || sigismember(&mask, SIGTERM)) _exit(3);
}

static void *makes_and_uses(void *unused) {
    (void)unused;
    use(make_registry());
    return NULL;
}

static void *uses(void *registry) {
    usleep(300000); /* the first thread has ended */
    use((pny_registry)registry);
    return NULL;
}

static void *stays(void *unused) {
    (void)unused;
    usleep(1500000);
    _exit(7);
}

static void start(void *(*run)(void *), void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, argument) != 0) _exit(4);
    pthread_detach(thread);
}

/* exit(3) goes on where the next thread finds it. */
static void ends_its_thread(void) { pthread_exit(NULL); }
static void handler_ends_its_thread(void) {
    use(make_registry());
    atexit(ends_its_thread);
}
/* Its end is told: no thread looks for it before. */
static void first_alone(void) {
    DIR *tasks;
    int threads = -2; /* . and .. */
    use(make_registry());
    tasks = opendir("/proc/self/task");
    while (readdir(tasks) != NULL) ++threads;
    closedir(tasks);
    if (threads != 2) printf("%d threads, which should be the first and the registry's\n", threads), fflush(stdout), _exit(5);
}
static void first_makes(void) { start(uses, make_registry()); }
static void other_makes(void) { start(makes_and_uses, NULL); }
static void program_stays(void) {
    use(make_registry());
    start(stays, NULL);
}
static void destroyed(void) {
    pny_registry registry;
    setenv("PINYARD_HOOKS", "userfaultfd", 1);
    registry = make_registry();
    use(registry);
    or_say(pny_registry_destroy(registry));
}
/* Another copy of the library, whose threads are not the program's either. */
static const char *copy;
static void two_copies(void) {
    void *second = dlopen(copy, RTLD_NOW | RTLD_LOCAL);
    void *symbol = second == NULL ? NULL : dlsym(second, "pny_registry_create");
    creates *create;
    memcpy(&create, &symbol, sizeof create);
    if (create == NULL || create == pny_registry_create) printf("%s\n", dlerror()), fflush(stdout), _exit(6);
    use(make_registry());
    make_registry_by(create);
}
/* A thread that the program makes in a function which pinyard calls is the program's. */
static int starts_one(void *user, const pny_key *key, void *address, size_t length) {
    (void)user, (void)key, (void)address, (void)length;
    start(stays, NULL);
    return 0;
}
static void made_by_ours(void) {
    pny_registry registry;
    void *at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pny_lease lease;
    deregisters = starts_one;
    registry = make_registry();
    or_say(pny_get(registry, at, LENGTH, PNY_LOCAL_READ, &lease));
    or_say(pny_put(&lease));
    munmap(at, LENGTH); /* the registry's thread deregisters it */
}
static void pool(void) {
    pny_pool made;
    void *block;
    pny_pool_config config;
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.registry = make_registry();
    or_say(pny_pool_create(&config, &made));
    or_say(pny_pool_alloc(made, LENGTH, NULL, &block));
    or_say(pny_pool_free(made, block));
}

static const struct {
    const char *name;
    void (*run)(void);
    int status;
} cases[] = {
    {"the first thread has a registry", first_alone, 0},
    {"another uses it afterwards", first_makes, 0},
    {"another makes it", other_makes, 0},
    {"userfaultfd's threads are left", destroyed, 0},
    {"a pool is left", pool, 0},
    {"a handler of exit's ends its thread", handler_ends_its_thread, 0},
    {"two copies", two_copies, 0},
    {"a thread that pinyard's thread made is left", made_by_ours, 7},
    {"a thread of the program's is left", program_stays, 7},
};

/* Of the child: its status, or -1 where it had to be killed, half a minute later. */
static int status_of(pid_t child) {
    int status, looks;
    for (looks = 0; looks < 3000; ++looks) {
        if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        usleep(10000);
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return -1;
}

static void *forks(void *child) {
    *(pid_t *)child = fork();
    if (*(pid_t *)child == 0) {
        makes_and_uses(NULL);
        pthread_exit(NULL);
    }
    return NULL;
}

int main(int arguments, char **argument) {
    size_t number;
    int status, failed = 0;
    pid_t child;
    pthread_t thread;
    if (arguments != 2) return 2;
    copy = argument[1];
    for (number = 0; number < sizeof cases / sizeof *cases; ++number) {
        fflush(stdout);
        child = fork();
        if (child == 0) {
            atexit(at_exit);
            cases[number].run();
            fflush(stdout);
            pthread_exit(NULL);
        }
        status = status_of(child);
        if (status != cases[number].status) ++failed, printf("%s: status %d\n", cases[number].name, status);
    }
    /* A thread that is not the first forks, before pinyard knows this process. */
    if (pthread_create(&thread, NULL, forks, &child) != 0 || pthread_join(thread, NULL) != 0) return 1;
    status = status_of(child);
    if (status != 0) ++failed, printf("forked by another thread: status %d\n", status);
    if (failed == 0) puts("completed");
    return failed != 0;
}
