/* MPICH's ranks poll without pause, so that more of them than cores wait for each other's
 * time slices: what takes Open MPI two seconds takes them fifty. Preloaded, this gives the
 * core away whenever UCX (Debian's MPICH is ch4:ucx) had nothing to do, as Open MPI does by
 * itself with mpi_yield_when_idle. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>

unsigned ucp_worker_progress(void *worker)
{
	static unsigned (*next)(void *);
	unsigned done;

	if (next == NULL) {
		*(void **)&next = dlsym(RTLD_NEXT, "ucp_worker_progress");
		if (next == NULL)
			abort();
	}
	done = next(worker);
	if (done == 0)
		sched_yield();
	return done;
}
