/* A process ends with the last of its program's threads, whatever threads pinyard has (pthread_exit(3)). Each
   case in a child, which says by its exit status what it should. */
#include "registry.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pinyard.h>
#include <pthread.h>
#include <sched.h>
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
    printf("%d: %s\n", status, pny_last_error());
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

/* How far each child came: memory that it shares with its parent. */
static volatile enum { BEGAN, HANDLED } *step;

static void at_exit(void) {
    /* What exit(3) calls has room, and takes signals. */
    volatile char room[1 << 20];
    sigset_t mask;
    room[0] = 1;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    if (room[0] != 1 || sigismember(&mask, SIGTERM)) _exit(3);
    *step = HANDLED;
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

/* Without a thread that only looks for the end. */
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
/* One in a namespace of its own (dlmopen(3)) has a libc of its own, and this one's keys are none of its. */
static void other_namespace(void) {
    static char mine;
    pthread_key_t key;
    void *second, *symbol;
    creates *create;
    pthread_key_create(&key, NULL);
    pthread_setspecific(key, &mine);
    second = dlmopen(LM_ID_NEWLM, copy, RTLD_NOW);
    symbol = second == NULL ? NULL : dlsym(second, "pny_registry_create");
    memcpy(&create, &symbol, sizeof create);
    if (create == NULL) printf("%s\n", dlerror()), fflush(stdout), _exit(6);
    make_registry_by(create);
    if (pthread_getspecific(key) != &mine) _exit(8);
}
/* exit(3)'s handlers run, under the last thread's mask. */
static void blocked(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    use(make_registry());
    kill(getpid(), SIGUSR1);
}
static void *is_cancelled(void *unused) {
    (void)unused;
    usleep(100000);
    pthread_cancel(pthread_self());
    exit(5);
}
static void cancelled(void) {
    use(make_registry());
    start(is_cancelled, NULL);
}
/* Makes, uses and destroys registries, also where the thread has given up its thread-local variables. */
static pthread_key_t rounds;
static void destructor(void *left) {
    pny_registry registry = make_registry();
    use(registry);
    or_say(pny_registry_destroy(registry));
    if (left != &rounds) pthread_setspecific(rounds, (char *)left - 1);
}
static void *has_destructors(void *unused) {
    (void)unused;
    pthread_setspecific(rounds, (char *)&rounds + 2);
    return NULL;
}
static void destructors(void) {
    int threads;
    pthread_key_create(&rounds, destructor);
    for (threads = 0; threads < 8; ++threads) start(has_destructors, NULL);
    has_destructors(NULL);
}
/* Threads that have used a copy end while it is closed. */
static void *uses_a_copy(void *library) {
    pny_registry registry;
    pny_lease lease;
    static char page[65536];
    creates *create;
    pny_status (*get)(pny_registry, const void *, size_t, pny_access, pny_lease *), (*put)(pny_lease *), (*destroy)(pny_registry);
    void *symbols[4];
    symbols[0] = dlsym(library, "pny_registry_create"), memcpy(&create, &symbols[0], sizeof create);
    symbols[1] = dlsym(library, "pny_get"), memcpy(&get, &symbols[1], sizeof get);
    symbols[2] = dlsym(library, "pny_put"), memcpy(&put, &symbols[2], sizeof put);
    symbols[3] = dlsym(library, "pny_registry_destroy"), memcpy(&destroy, &symbols[3], sizeof destroy);
    registry = make_registry_by(create);
    or_say(get(registry, page, sizeof page, PNY_LOCAL_READ, &lease));
    or_say(put(&lease));
    or_say(destroy(registry));
    dlclose(library);
    return NULL;
}
static void unloads(void) {
    int round;
    setenv("PINYARD_HOOKS", "notify", 1); /* no hook keeps it */
    for (round = 0; round < 100; ++round) {
        pthread_t threads[4]; /* of a process's registries there are no more than 64 */
        size_t number;
        for (number = 0; number < 4; ++number) {
            void *library = dlopen(copy, RTLD_NOW | RTLD_LOCAL);
            if (library == NULL) printf("%s\n", dlerror()), fflush(stdout), _exit(6);
            if (pthread_create(&threads[number], NULL, uses_a_copy, library) != 0) _exit(4);
        }
        for (number = 0; number < 4; ++number) pthread_join(threads[number], NULL);
    }
}
/* unshare(2): EINVAL where another thread is left, EPERM where the kernel allows nobody. */
static void new_user(void) {
    pny_registry registry = make_registry();
    use(registry);
    or_say(pny_registry_destroy(registry));
    if (unshare(CLONE_NEWUSER) != 0 && errno == EINVAL) _exit(9);
}
/* A thread that the program makes in a function which pinyard calls is the program's. */
static volatile int has_started;
static int starts_one(void *user, const pny_key *key, void *address, size_t length) {
    (void)user, (void)key, (void)address, (void)length;
    start(stays, NULL);
    has_started = 1;
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
    while (!has_started) usleep(1000);
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
    {"two copies", two_copies, 0},
    {"a copy in another namespace", other_namespace, 0},
    {"a signal that is blocked is pending", blocked, 0},
    {"exit(3) by a thread that is cancelled", cancelled, 5},
    {"destructors of thread-specific data", destructors, 0},
    {"threads end while the library is closed", unloads, 0},
    {"a user namespace, after the last registry", new_user, 0},
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
    step = mmap(NULL, sizeof *step, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (number = 0; number < sizeof cases / sizeof *cases; ++number) {
        *step = BEGAN;
        fflush(stdout);
        child = fork();
        if (child == 0) {
            atexit(at_exit);
            cases[number].run();
            fflush(stdout);
            pthread_exit(NULL);
        }
        status = status_of(child);
        if (status != cases[number].status || (status != 7 && *step != HANDLED))
            ++failed, printf("%s: status %d, %s\n", cases[number].name, status, *step == HANDLED ? "" : "no handler");
    }
    /* A thread that is not the first forks, before pinyard knows this process. */
    if (pthread_create(&thread, NULL, forks, &child) != 0 || pthread_join(thread, NULL) != 0) return 1;
    status = status_of(child);
    if (status != 0) ++failed, printf("forked by another thread: status %d\n", status);
    if (failed == 0) puts("completed");
    return failed != 0;
}
