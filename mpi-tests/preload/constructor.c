/*
 * A constructor that comes to libfabric, with the loader's lock, beside threads that come
 * there without it.
 *
 *   constructor COUNT      opens libconstructor.so, found beside this program, COUNT times
 *   constructor waits      opens libwaits.so, whose constructor waits for a mutex; the thread that has
 *                          it asks libfabric and sets a handler of UCX's meanwhile, not for the first time
 *
 * With -DOPENED it is libconstructor.so. libwaits.so is waiting_constructor.h with -DPLUGIN.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include <rdma/fabric.h>

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

#ifdef OPENED
__attribute__((constructor)) static void opened(void) { ask(); }
#else
#include "../waiting_constructor.h"

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

static int waits(const char *path)
{
	ask_both();
	if (work_while_a_constructor_waits(path, ask_both) != 0)
		return 1;
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
