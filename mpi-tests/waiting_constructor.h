/* A constructor, which has the loader's lock, waits for a mutex; the thread that has the mutex works
 * meanwhile. Who waits for the loader in that work waits for ever.
 *
 * With -DPLUGIN, the constructor alone: for a library that the program opens, which is linked with
 * -rdynamic.
 */
void opened_while_another_has_the_mutex(void);

#ifdef PLUGIN
__attribute__((constructor)) static void opened(void)
{
	opened_while_another_has_the_mutex();
}
#else
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t in_constructor;
static void (*work_beside)(void);

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
		work_beside();
	pthread_mutex_unlock(&mutex);
	return none;
}

/* Opens the library at `path`, whose constructor waits until another thread has called `work` 100 times.
 * 0: it did. */
static int work_while_a_constructor_waits(const char *path, void (*work)(void))
{
	pthread_t thread;

	work_beside = work;
	if (pthread_barrier_init(&in_constructor, NULL, 2) != 0 || pthread_create(&thread, NULL, has_the_mutex, NULL) != 0)
		return 1;
	if (dlopen(path, RTLD_NOW) == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	return pthread_join(thread, NULL);
}
#endif
