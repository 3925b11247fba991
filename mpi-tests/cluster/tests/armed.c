/* Linked with bcast: an allocator that gives a page back to the system in each call, as
 * mimalloc and jemalloc do now and then, and a watchdog for MPI_Bcast that prints where
 * it waits and ends the rank with 42. */
#define _GNU_SOURCE
#include <execinfo.h>
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../incidents/watchdog.h"

#define PAGE 4096
#define EXIT_HANG 42

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

static char *volatile scratch;

/* Not inlined, to be seen in a stack. */
__attribute__((noinline)) void release_pages(void);
void release_pages(void)
{
	if (scratch && madvise(scratch, PAGE, MADV_DONTNEED))
		abort();
}

void *malloc(size_t size)
{
	release_pages();
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	release_pages();
	return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
	release_pages();
	return __libc_realloc(memory, size);
}

void free(void *memory)
{
	release_pages();
	__libc_free(memory);
}

static void on_hang(void)
{
	static const char said[] = "watchdog: MPI_Bcast hangs; its stack:\n";
	void *frames[64];
	int count;

	scratch = NULL;
	count = backtrace(frames, 64);
	if (write(STDERR_FILENO, said, sizeof said - 1) > 0)
		backtrace_symbols_fd(frames, count, STDERR_FILENO);
	_exit(EXIT_HANG);
}

int MPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm communicator)
{
	if (!scratch) {
		void *frame[1];

		/* The first backtrace loads libgcc: not in the handler. */
		backtrace(frame, 1);
		watchdog_start(CLOCK_THREAD_CPUTIME_ID, on_hang);
		scratch = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (scratch == MAP_FAILED)
			abort();
	}
	watchdog_feed();
	int status = PMPI_Bcast(buffer, count, type, root, communicator);
	atomic_store(&watchdog_on, false);
	return status;
}
