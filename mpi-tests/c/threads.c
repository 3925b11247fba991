/* What a program's threads may do: be cancelled inside any function of pinyard's, which returns before the
   thread ends (pthread_cancel(3)); use up the keys of pthread's, before or after (pthread_key_create(3));
   and have a standard error that nobody reads. Each case in a child: one that ends by a signal has failed. */
#include "registry.h"
#include <errno.h>
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

static pny_registry registry;
static pny_pool pool;
/* What a function has answered, and whether the thread has come back from it. */
static int answered;
static int returned;

static int pin(void *user, void *address, size_t length, pny_access access, pny_key *key) {
    static uint64_t next;
    (void)user, (void)address, (void)length, (void)access;
    key->lkey = ++next;
    usleep(1); /* a cancellation point of the program's own */
    return 0;
}

static int unpin(void *user, const pny_key *key, void *address, size_t length) {
    (void)user, (void)key, (void)address, (void)length;
    usleep(1);
    return 0;
}

static pny_status make_registry(pny_registry *made) {
    return registry_over(pny_registry_create, "sleeps", pin, unpin, made);
}

static pny_status make_pool(pny_pool *made) {
    pny_pool_config config;
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.registry = registry;
    return pny_pool_create(&config, made);
}

static void *map(void) {
    void *at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    return at;
}

static pny_status get(void) {
    pny_lease lease;
    pny_status status = pny_get(registry, map(), LENGTH, PNY_LOCAL_WRITE, &lease);
    return status == PNY_OK ? pny_put(&lease) : status;
}

static pny_status invalidate(void) {
    pny_lease lease;
    void *at = map();
    pny_status status = pny_get(registry, at, LENGTH, PNY_LOCAL_WRITE, &lease);
    if (status == PNY_OK) status = pny_put(&lease);
    return status == PNY_OK ? pny_invalidate(registry, at, LENGTH) : status;
}

static pny_status flush(void) { return pny_flush(registry); }

static pny_status create_and_destroy(void) {
    pny_registry other;
    pny_status status = make_registry(&other);
    return status == PNY_OK ? pny_registry_destroy(other) : status;
}

static pny_status allocate(void) {
    void *small, *large;
    pny_status status = pny_pool_alloc(pool, 100, NULL, &small);
    if (status != PNY_OK) return status;
    status = pny_pool_alloc(pool, (size_t)9 << 20, NULL, &large);
    if (status == PNY_OK) status = pny_pool_free(pool, large);
    return status == PNY_OK ? pny_pool_free(pool, small) : status;
}

static pny_status pools(void) {
    pny_pool other;
    pny_status status = make_pool(&other);
    return status == PNY_OK ? pny_pool_destroy(other) : status;
}

static const struct {
    const char *name;
    pny_status (*run)(void);
} cases[] = {
    {"pny_get", get},        {"pny_invalidate", invalidate}, {"pny_flush", flush},
    {"pny_registry_create", create_and_destroy}, {"pny_pool_alloc", allocate}, {"pny_pool_create", pools},
};

static void *cancelled(void *argument) {
    pny_status (*run)(void) = cases[*(int *)argument].run;
    pthread_cancel(pthread_self());
    answered = run();
    returned = 1;
    pthread_testcancel();
    return argument;
}

static void *plain(void *argument) {
    answered = cases[*(int *)argument].run();
    returned = 1;
    return argument;
}

/* Whether `start` came back from the case on a thread of its own, and what that thread ended with. */
static int on_a_thread(void *(*start)(void *), int number, void **ended) {
    pthread_t thread;
    returned = 0;
    if (pthread_create(&thread, NULL, start, &number) != 0) return 0;
    pthread_join(thread, ended);
    if (!returned || answered != PNY_OK) {
        printf("%s: %s, status %d: %s\n", cases[number].name, returned ? "returned" : "did not return", answered,
               pny_strerror(answered));
    }
    return returned && answered == PNY_OK;
}

static int cancels(int number) {
    void *ended;
    return on_a_thread(cancelled, number, &ended) && ended == PTHREAD_CANCELED;
}

static void take_all_keys(void) {
    pthread_key_t key;
    while (pthread_key_create(&key, NULL) == 0) {
    }
}

static int uses_no_key(int number) {
    void *ended;
    take_all_keys();
    return on_a_thread(plain, number, &ended);
}

/* Refused, with what to do. */
static int needs_a_key(int number) {
    pny_registry other;
    (void)number;
    take_all_keys();
    if (make_registry(&other) == PNY_OK) return 0;
    return strstr(pny_last_error(), "PTHREAD_KEYS_MAX") != NULL;
}

/* A line of pinyard's own on a pipe that nobody reads, where SIGPIPE ends a program. */
static int tells_nobody(int number) {
    int ends[2];
    (void)number;
    if (pipe(ends) != 0) return 0;
    signal(SIGPIPE, SIG_DFL);
    close(ends[0]);
    dup2(ends[1], STDERR_FILENO);
    setenv("PINYARD_DRIVER", "simulated", 1);
    /* No block: what is told has no other way, as the function has no status. */
    pny_torch_free(map(), 4096, 0, NULL);
    return 1;
}

/* Runs `test` in a child, with a registry and a pool where it asks for them. */
static int passes(const char *what, int number, int made, int (*test)(int)) {
    int status;
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        alarm(60);
        if (made && (make_registry(&registry) != PNY_OK || make_pool(&pool) != PNY_OK)) {
            printf("%s: %s\n", what, pny_last_error());
            _exit(2);
        }
        status = !test(number);
        fflush(stdout);
        _exit(status);
    }
    waitpid(child, &status, 0);
    if (status != 0) printf("%s, %s: wait status %d\n", what, number < 0 ? "" : cases[number].name, status);
    return status == 0;
}

int main(void) {
    int number, failed = 0;
    for (number = 0; number < (int)(sizeof cases / sizeof *cases); ++number) {
        failed += !passes("cancelled", number, 1, cancels);
        if (cases[number].run != create_and_destroy && cases[number].run != pools)
            failed += !passes("without keys", number, 1, uses_no_key);
    }
    failed += !passes("no key for a registry", -1, 0, needs_a_key);
    failed += !passes("nobody reads", -1, 0, tells_nobody);
    if (failed == 0) puts("completed");
    return failed != 0;
}
