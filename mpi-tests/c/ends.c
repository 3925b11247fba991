/* A process ends with the last of its program's threads, whatever threads pinyard has (pthread_exit(3)). Each
   case in a child, which says by its exit status what it should. */
#include "ends.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>

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
static creates *creates_of(void *library) {
    void *symbol = library == NULL ? NULL : dlsym(library, "pny_registry_create");
    creates *create;
    memcpy(&create, &symbol, sizeof create);
    if (create == NULL || create == pny_registry_create) printf("%s\n", dlerror()), fflush(stdout), _exit(6);
    return create;
}
static void two_copies(void) {
    creates *create = creates_of(dlopen(copy, RTLD_NOW | RTLD_LOCAL));
    use(make_registry());
    make_registry_by(create);
}
/* One in a namespace of its own (dlmopen(3)) has a libc of its own, and this one's keys are none of its. */
static void other_namespace(void) {
    static char mine;
    pthread_key_t key;
    pthread_key_create(&key, NULL);
    pthread_setspecific(key, &mine);
    make_registry_by(creates_of(dlmopen(LM_ID_NEWLM, copy, RTLD_NOW)));
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
/* A handler of exit(3) makes what has threads: that exit(3) is the only one. */
static void *ends_at_once(void *unused) { return unused; }
static int makes_a_thread(void *user, const pny_key *key, void *address, size_t length) {
    pthread_t thread;
    (void)user, (void)key, (void)address, (void)length;
    if (pthread_create(&thread, NULL, ends_at_once, NULL) == 0) pthread_join(thread, NULL);
    return 0;
}
static void handler_makes(void) {
    pny_registry registry;
    deregisters = makes_a_thread;
    registry = make_registry();
    use(registry);
    or_say(pny_registry_destroy(registry));
    pool();
    usleep(200000); /* who ends beside it */
    ++*handled;
}
static void made_in_a_handler(void) { atexit(handler_makes); }
static void made_in_a_handler_again(void) {
    pool();
    atexit(handler_makes);
}
/* A thread of pinyard's is at work when the last one ends: in a function of the program's, which is let end. */
static volatile int is_called, may_go;
static int takes_its_time(void *user, const pny_key *key, void *address, size_t length) {
    pthread_attr_t nowhere;
    pthread_t thread;
    cpu_set_t no_processor;
    int number;
    (void)user, (void)key, (void)address, (void)length;
    is_called = 1;
    while (!may_go) usleep(1000);
    usleep(100000);
    /* glibc counts a thread that is not made, and then does not look at the count. */
    CPU_ZERO(&no_processor);
    CPU_SET(1000, &no_processor);
    pthread_attr_init(&nowhere);
    pthread_attr_setaffinity_np(&nowhere, sizeof no_processor, &no_processor);
    for (number = 0; number < 300; ++number)
        if (pthread_create(&thread, &nowhere, ends_at_once, NULL) == 0) _exit(4);
    makes_a_thread(NULL, NULL, NULL, 0);
    make_registry();
    ++*handled;
    return 0;
}
static void at_work(void) {
    pny_registry registry;
    deregisters = takes_its_time;
    registry = make_registry();
    use_and_unmap(registry);
    while (!is_called) usleep(1000);
    may_go = 1;
}
/* What such a function leaves to the thread's end is let end as well. */
static pthread_key_t left_behind;
static volatile int is_in_destructor;
static void destroys_slowly(void *unused) {
    (void)unused;
    is_in_destructor = 1;
    usleep(200000);
    makes_a_thread(NULL, NULL, NULL, 0);
    ++*handled;
}
static int leaves_behind(void *unused) {
    (void)unused;
    pthread_setspecific(left_behind, &left_behind);
    is_called = 1;
    return 1;
}
static void thread_specific(void) {
    pny_pool made;
    pny_pool_config config;
    pny_stream stream;
    void *block;
    pthread_key_create(&left_behind, destroys_slowly);
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.memory = PNY_MEMORY_DEVICE;
    config.driver = PNY_DRIVER_SIMULATED;
    config.simulated_bytes = 64 << 20;
    or_say(pny_pool_create(&config, &made));
    or_say(pny_stream_create(made, NULL, &stream));
    or_say(pny_pool_alloc(made, LENGTH, stream, &block));
    or_say(pny_pool_defer_until(made, block, leaves_behind, NULL));
    while (!is_called) usleep(1000); /* the pool's thread asks, which ends with the pool */
    or_say(pny_stream_destroy(stream));
    while (pny_pool_destroy(made) == PNY_ERR_BUSY) usleep(1000);
    while (!is_in_destructor) usleep(1000);
}
/* fork(2) in a function of the program's that another one of them has had called: its child goes on in the first. */
static pny_registry inner;
static void *inner_memory;
static volatile pid_t of_inner = -1;
static int forks_inside(void *user, const pny_key *key, void *address, size_t length) {
    (void)user, (void)key, (void)address, (void)length;
    if (inner == NULL) return 0;
    if (inner_memory != address) {
        or_say(pny_invalidate(inner, inner_memory, LENGTH));
        if (of_inner == 0) usleep(300000), _exit(*handled == 0 ? 7 : 8);
        is_called = 1;
    } else
        of_inner = fork();
    return 0;
}
static void forked_inside(void) {
    pny_lease lease;
    pny_registry outer;
    deregisters = forks_inside;
    outer = make_registry();
    inner = make_registry();
    inner_memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    or_say(pny_get(inner, inner_memory, LENGTH, PNY_LOCAL_READ, &lease));
    or_say(pny_put(&lease));
    use_and_unmap(outer);
    while (!is_called) usleep(1000);
    if (status_of(of_inner) != 7) _exit(8);
}
/* fork(2) in a handler of a signal that comes while a registry is made: the child goes on. */
static volatile pid_t its_child = -1;
static void forks_here(int signal) {
    (void)signal;
    its_child = fork();
}
static void *sends(void *thread) {
    pthread_kill(*(pthread_t *)thread, SIGUSR1);
    return NULL;
}
static void forked_by_a_handler(void) {
    pthread_t self = pthread_self(), sender;
    pny_registry registry;
    signal(SIGUSR1, forks_here);
    if (pthread_create(&sender, NULL, sends, &self) != 0) _exit(4);
    registry = make_registry();
    while (its_child == -1) usleep(1000);
    if (its_child == 0) _exit(7);
    pthread_join(sender, NULL);
    if (status_of(its_child) != 7) _exit(8);
    use(registry);
}
/* Several threads make the first registry, with so many keys of pthread's left: each is made, or refused. */
static volatile int keys_are_gone;
static void *makes_one(void *unused) {
    pny_registry registry;
    pny_status status;
    (void)unused;
    while (!keys_are_gone) sched_yield();
    status = registry_over(pny_registry_create, "none", pin, unpin, &registry);
    if (status != PNY_OK) printf("%d: %s\n", status, pny_last_error()), fflush(stdout), _exit(8);
    return NULL;
}
static void few_keys(void) {
    pthread_t threads[3];
    pthread_key_t keys[1025];
    int made = 0, number;
    while (made < 1025 && pthread_key_create(&keys[made], NULL) == 0) ++made;
    pthread_key_delete(keys[made - 1]);
    pthread_key_delete(keys[made - 2]);
    for (number = 0; number < 3; ++number)
        if (pthread_create(&threads[number], NULL, makes_one, NULL) != 0) _exit(4);
    keys_are_gone = 1;
    for (number = 0; number < 3; ++number) pthread_join(threads[number], NULL);
}
/* Threads that have used a copy end while it is closed. */
static void *uses_a_copy(void *library) {
    pny_registry registry;
    pny_lease lease;
    static char page[65536];
    pny_status (*get)(pny_registry, const void *, size_t, pny_access, pny_lease *), (*put)(pny_lease *), (*destroy)(pny_registry);
    void *symbols[3];
    symbols[0] = dlsym(library, "pny_get"), memcpy(&get, &symbols[0], sizeof get);
    symbols[1] = dlsym(library, "pny_put"), memcpy(&put, &symbols[1], sizeof put);
    symbols[2] = dlsym(library, "pny_registry_destroy"), memcpy(&destroy, &symbols[2], sizeof destroy);
    registry = make_registry_by(creates_of(library));
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
    deregisters = starts_one;
    use_and_unmap(make_registry());
    while (!has_started) usleep(1000);
}
static const struct {
    const char *name;
    void (*run)(void);
    int status, handlers;
} cases[] = {
    {"the first thread has a registry", first_alone, 0, 1},
    {"another uses it afterwards", first_makes, 0, 1},
    {"another makes it", other_makes, 0, 1},
    {"userfaultfd's threads are left", destroyed, 0, 1},
    {"a pool is left", pool, 0, 1},
    {"two copies", two_copies, 0, 1},
    {"a copy in another namespace", other_namespace, 0, 1},
    {"a signal that is blocked is pending", blocked, 0, 1},
    {"exit(3) by a thread that is cancelled", cancelled, 5, 1},
    {"destructors of thread-specific data", destructors, 0, 1},
    {"a handler of exit(3) makes the first registry", made_in_a_handler, 0, 2},
    {"a handler of exit(3) makes another", made_in_a_handler_again, 0, 2},
    {"a thread of pinyard's is in a function of the program's", at_work, 0, 2},
    {"a thread of pinyard's has thread-specific data of the program's", thread_specific, 0, 2},
    {"a function of the program's forks inside another", forked_inside, 0, 1},
    {"a handler of signals forks", forked_by_a_handler, 0, 1},
    {"two keys are left", few_keys, 0, 1},
    {"threads end while the library is closed", unloads, 0, 1},
    {"a user namespace, after the last registry", new_user, 0, 1},
    {"a thread that pinyard's thread made is left", made_by_ours, 7, 0},
    {"a thread of the program's is left", program_stays, 7, 0},
};

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
    handled = mmap(NULL, sizeof *handled, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (number = 0; number < sizeof cases / sizeof *cases; ++number) {
        *handled = 0;
        fflush(stdout);
        child = fork();
        if (child == 0) {
            atexit(at_exit);
            cases[number].run();
            fflush(stdout);
            pthread_exit(NULL);
        }
        status = status_of(child);
        if (status != cases[number].status || *handled != cases[number].handlers)
            ++failed, printf("%s: status %d, %d handlers\n", cases[number].name, status, *handled);
    }
    /* A thread that is not the first forks, before pinyard knows this process. */
    if (pthread_create(&thread, NULL, forks, &child) != 0 || pthread_join(thread, NULL) != 0) return 1;
    status = status_of(child);
    if (status != 0) ++failed, printf("forked by another thread: status %d\n", status);
    if (failed == 0) puts("completed");
    return failed != 0;
}
