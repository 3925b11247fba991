/* A program whose host gives it little: a standard error that nobody reads, a cancellation that is
 * pending, a plugin that is unloaded. It does with the preload library what it does without.
 *
 *   guest unread            its first call of libfabric, with a closed pipe as standard error
 *   guest cancelled         a thread whose cancellation is pending makes that call
 *   guest unloaded PLUGIN   a plugin that is linked with libfabric is opened, used, and closed
 *
 * With -DPLUGIN, that plugin; with -DHOST, the last mode alone, in a program that is not linked with
 * libfabric.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef HOST
#include <rdma/fabric.h>

__attribute__((visibility("default"))) int ask(void);
int ask(void) {
	struct fi_info *hints = fi_allocinfo(), *info = NULL;
	hints->fabric_attr->prov_name = strdup("udp");
	int status = fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info);
	if (status == 0)
		fi_freeinfo(info);
	fi_freeinfo(hints);
	return status;
}

#endif

#ifndef PLUGIN
#ifndef HOST
static int unread(void) {
	int ends[2];
	if (pipe(ends) != 0 || dup2(ends[1], STDERR_FILENO) < 0)
		return 2;
	close(ends[0]);
	close(ends[1]);
	ask();
	return 0;
}

static void *with_cancellation_pending(void *none) {
	pthread_cancel(pthread_self());
	ask();
	return none;
}

static int cancelled(void) {
	pthread_t thread;
	if (pthread_create(&thread, NULL, with_cancellation_pending, NULL) != 0)
		return 2;
	/* Cancelled within libfabric or not; if it is, libfabric's own end waits for a lock of its. */
	if (pthread_join(thread, NULL) != 0)
		return 2;
	puts("completed");
	fflush(stdout);
	_exit(0);
}

#endif

static int unloaded(const char *path) {
	void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	int (*use)(void);
	if (plugin == NULL || (*(void **)&use = dlsym(plugin, "ask")) == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		return 2;
	}
	use();
	dlclose(plugin);
	if (dlopen(path, RTLD_NOW | RTLD_NOLOAD) != NULL) {
		puts("still loaded");
		return 1;
	}
	return 0;
}

int main(int count, char **words) {
	const char *mode = count > 1 ? words[1] : "";
	int status = 2;
#ifndef HOST
	if (strcmp(mode, "unread") == 0)
		status = unread();
	else if (strcmp(mode, "cancelled") == 0)
		status = cancelled();
#endif
	if (strcmp(mode, "unloaded") == 0 && count > 2)
		status = unloaded(words[2]);
	if (status == 0)
		puts("completed");
	return status;
}
#endif
