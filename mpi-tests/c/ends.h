/* What the cases of ends.c do. */
#ifndef TESTS_ENDS_H
#define TESTS_ENDS_H

#include "registry.h"
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

/* How often the handler of each child has run: memory that it shares with its parent. */
static volatile int *handled;

/* The memory goes at once: the registry's thread deregisters it. */
static void use_and_unmap(pny_registry registry) {
    pny_lease lease;
    void *at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    or_say(pny_get(registry, at, LENGTH, PNY_LOCAL_READ, &lease));
    or_say(pny_put(&lease));
    munmap(at, LENGTH);
}

static void at_exit(void) {
    /* What exit(3) calls has room, and takes signals. */
    volatile char room[1 << 20];
    sigset_t mask;
    room[0] = 1;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    if (room[0] != 1 || sigismember(&mask, SIGTERM)) _exit(3);
    ++*handled;
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

static void start(void *(*run)(void *), void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, argument) != 0) _exit(4);
    pthread_detach(thread);
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
#endif
