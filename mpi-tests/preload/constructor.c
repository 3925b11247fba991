/*
 * A constructor that comes to libfabric, with the loader's lock, beside threads that come
 * there without it.
 *
 *   constructor COUNT      opens libconstructor.so, found beside this program, COUNT times
 *
 * With -DOPENED it is libconstructor.so.
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

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 0;
	pthread_t threads[THREADS];
	char path[4096];

	snprintf(path, sizeof(path), "%.*s/libconstructor.so", (int) (strrchr(argv[0], '/') - argv[0]), argv[0]);
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
