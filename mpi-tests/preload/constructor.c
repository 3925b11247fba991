/*
 * A constructor that comes to libfabric, with the loader's lock, beside threads that come
 * there without it.
 *
 *   constructor COUNT      opens libconstructor.so, found beside this program, COUNT times
 *   constructor waits      opens libwaits.so, whose constructor waits for a mutex; the thread that has
 *                          it asks libfabric and sets a handler of UCX's meanwhile, not for the first time
 *
 * With -DOPENED it is libconstructor.so, with -DWAITS libwaits.so.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include <rdma/fabric.h>

#ifndef WAITS
/* Starts nothing and answers quickly, whether there is such a provider or not. */
static void ask(void)
{
	struct fi_info *hints = fi_allocinfo(), *info = NULL;

	hints->fabric_attr->prov_name = malloc(sizeof("udp"));
	sprintf(hints->fabric_attr->prov_name, "udp");
	fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info);
	fi_freeinfo(info);
	fi_freeinfo(hints);
}
#endif

#ifdef WAITS
void opened_while_another_has_the_mutex(void);
__attribute__((constructor)) static void opened(void) { opened_while_another_has_the_mutex(); }
#elif defined(OPENED)
__attribute__((constructor)) static void opened(void) { ask(); }
#else
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

enum { THREADS = 2 };

static atomic_bool done;
static atomic_long asked;

static void *asks(void *none)
{
	do {
		ask();
		atomic_fetch_add(&asked, 1);
	} while (!atomic_load(&done));
	return none;
}

int ucm_set_event_handler(int events, int priority, void *callback, void *argument);
void ucm_unset_event_handler(int events, void *callback, void *argument);

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t in_constructor;
static long answers;

static void nothing(int event, void *change, void *argument)
{
	(void) event, (void) change, (void) argument;
}

static void ask_both(void)
{
	enum { VM_UNMAPPED = 1 << 17 };

	ask();
	answers += ucm_set_event_handler(VM_UNMAPPED, 5, nothing, NULL) == 0;
	ucm_unset_event_handler(VM_UNMAPPED, nothing, NULL);
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
		ask_both();
	pthread_mutex_unlock(&mutex);
	return none;
}

static int waits(const char *path)
{
	pthread_t thread;

	ask_both();
	pthread_barrier_init(&in_constructor, NULL, 2);
	if (pthread_create(&thread, NULL, has_the_mutex, NULL) != 0 || dlopen(path, RTLD_NOW) == NULL)
		return 1;
	pthread_join(thread, NULL);
	printf("waited for %ld answers\n", answers);
	return 0;
}

int main(int argc, char **argv)
{
	bool wait = argc > 1 && strcmp(argv[1], "waits") == 0;
	int count = argc > 1 ? atoi(argv[1]) : 0;
	pthread_t threads[THREADS];
	char path[4096];

	snprintf(path, sizeof(path), "%.*s/lib%s.so", (int) (strrchr(argv[0], '/') - argv[0]), argv[0],
		 wait ? "waits" : "constructor");
	if (wait)
		return waits(path);
	/* Once before: a libfabric that starts in a constructor waits for its own lock. */
	ask();
	for (int thread = 0; thread < THREADS; thread++)
		if (pthread_create(&threads[thread], NULL, asks, NULL) != 0)
			return 1;
	for (int round = 0; round < count; round++) {
		void *handle = dlopen(path, RTLD_NOW);

		if (handle == NULL) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		dlclose(handle);
	}
	atomic_store(&done, true);
	for (int thread = 0; thread < THREADS; thread++)
		pthread_join(threads[thread], NULL);
	printf("opened %d times, asked %s\n", count, atomic_load(&asked) >= THREADS ? "beside" : "never");
	return 0;
}
#endif
