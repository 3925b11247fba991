/*
 * What the incidents share: an allocator that releases pages from inside malloc
 * and free, a watchdog that prints the hang, a verbs domain over the stand-in
 * device, and the workload.
 */
#ifndef INCIDENT_H
#define INCIDENT_H

#include <stddef.h>

#include <rdma/fi_domain.h>

/* The watchdog's exit status. */
#define EXIT_HANG 42

enum mode {
	/* The libraries as they are shipped; the allocator releases pages. */
	MODE_NAIVE,
	/* The same, but the allocator releases nothing: the workload is sound. */
	MODE_CONTROL,
	/* pinyard's monitor imported first; the allocator releases pages. */
	MODE_PINYARD,
};

/* Exits with a message, naming the place, unless `condition` holds. */
#define CHECK(condition, ...) \
	do { \
		if (!(condition)) \
			incident_fail(__FILE__, __LINE__, #condition, __VA_ARGS__); \
	} while (0)

/* The same for a libfabric call, which returns 0 or a negative error. */
#define CHECK_FI(call) \
	do { \
		int result_ = (int) (call); \
		CHECK(result_ == 0, "%s: %s", #call, fi_strerror(-result_)); \
	} while (0)

__attribute__((noreturn, format(printf, 4, 5)))
void incident_fail(const char *file, int line, const char *condition, const char *format, ...);

/* Moves the data of one round between the ranks and checks it; NULL for none. */
typedef void (*exchange_function)(char *buffer, size_t length, int round);

/*
 * Reads `PROGRAM naive|control` or `PROGRAM pinyard LIBPINYARD.SO`. From here to
 * the end of the process the allocator releases pages (but for `control`), and
 * the watchdog runs. With `pinyard` it opens the library and imports its
 * monitor: call it first in main.
 */
enum mode incident_begin(int argc, char **argv);

/* The domain of the stand-in device, with libfabric's registration cache. */
struct fid_domain *incident_open_domain(void);

/*
 * The workload. Checks that the cache caches and that it returns nothing stale.
 */
void incident_run(enum mode mode, struct fid_domain *domain, exchange_function exchange);

#endif
