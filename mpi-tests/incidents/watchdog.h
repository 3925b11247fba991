/*
 * Tells a hang from a slow machine: the thread that is watched has used no processor for
 * HANG_SECONDS, asked once a second, since it was last fed. Whatever spins, or is merely
 * slow, has HANG_LIMIT seconds.
 */
#ifndef WATCHDOG_H
#define WATCHDOG_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define HANG_SECONDS 5
#define HANG_LIMIT 120
#define HANG_STILL 5000000 /* ns of processor time in a second: what a tick itself may take */

static atomic_bool watchdog_on;
static atomic_int watchdog_still, watchdog_ticks;
static clockid_t watchdog_clock;
static void (*watchdog_found)(void);

static void watchdog_tick(int signal)
{
	static long last;
	struct timespec now;
	long used;

	(void) signal;
	if (!atomic_load(&watchdog_on) || clock_gettime(watchdog_clock, &now))
		return;
	used = now.tv_sec * 1000000000l + now.tv_nsec;
	if (used - last > HANG_STILL)
		atomic_store(&watchdog_still, 0);
	else
		atomic_fetch_add(&watchdog_still, 1);
	last = used;
	if (atomic_load(&watchdog_still) >= HANG_SECONDS || atomic_fetch_add(&watchdog_ticks, 1) >= HANG_LIMIT)
		watchdog_found();
}

/* The next round begins. */
static void watchdog_feed(void)
{
	atomic_store(&watchdog_still, 0);
	atomic_store(&watchdog_ticks, 0);
	atomic_store(&watchdog_on, true);
}

/* Watches the calling thread, or by CLOCK_PROCESS_CPUTIME_ID all of the process; `found`, which
 * does not return, runs in a signal handler of the calling thread. */
static void watchdog_start(clockid_t clock, void (*found)(void))
{
	/* A process's alarm may wake any thread. */
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR2 };
	struct sigaction action = { .sa_handler = watchdog_tick, .sa_flags = SA_RESTART };
	struct itimerspec second = { .it_value = { .tv_sec = 1 }, .it_interval = { .tv_sec = 1 } };
	timer_t timer;

	watchdog_clock = clock;
	watchdog_found = found;
	event._sigev_un._tid = gettid();
	if (sigaction(SIGUSR2, &action, NULL) || timer_create(CLOCK_MONOTONIC, &event, &timer) ||
	    timer_settime(timer, 0, &second, NULL))
		abort();
}

#endif
