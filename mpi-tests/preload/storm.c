/*
 * A server after vLLM #24264 and UCX #5131: UCX registers a buffer once and is then idle,
 * while the rest of the program maps and unmaps without end.
 *
 *   storm N     N rounds; by how much the resident memory grew from the tenth part to
 *               the end. Where registrations are counted (a stand-in, or count.c over a
 *               real device), whether the buffer is then still known, and is registered
 *               anew once its pages are others.
 *   storm N random  N changes and uses of random ranges, where registrations are
 *               counted: a range of which a page has changed since it was used must be
 *               registered
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ucm/api/ucm.h>
#include <ucp/api/ucp.h>

#define PAGE 4096ul
#define LENGTH (1024 * 1024ul)
#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
			_exit(1); \
		} \
	} while (0)

static long resident_kib(void)
{
	long size, pages;
	FILE *file = fopen("/proc/self/statm", "r");

	CHECK(file && fscanf(file, "%ld %ld", &size, &pages) == 2);
	fclose(file);
	return pages * (long) (PAGE / 1024);
}

/* Of whatever counts what reaches the device. */
__attribute__((weak)) long fakeverbs_registrations(void);

static char *map(char *at, size_t length)
{
	char *buffer = mmap(at, length, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED_NOREPLACE : 0), -1, 0);

	CHECK(buffer != MAP_FAILED && (!at || buffer == at));
	return buffer;
}

/* How many registrations it took. */
static long use(ucp_context_h context, char *buffer, size_t length)
{
	ucp_mem_map_params_t parameters = {
		.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
		.address = buffer,
		.length = length,
	};
	long before = fakeverbs_registrations ? fakeverbs_registrations() : 0;
	ucp_mem_h region;

	CHECK(ucp_mem_map(context, &parameters, &region) == UCS_OK);
	CHECK(ucp_mem_unmap(context, region) == UCS_OK);
	return fakeverbs_registrations ? fakeverbs_registrations() - before : 0;
}

static void rounds(long count)
{
	/* Pairs a page apart: no range borders on the next. */
	enum { WINDOW = 64 };
	char *window = mmap(NULL, 2 * WINDOW * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(window != MAP_FAILED);
	for (long round = 0; round < count; round++) {
		char *page = window + 2 * (round % WINDOW) * PAGE;

		CHECK(mprotect(page, PAGE, PROT_READ | PROT_WRITE) == 0);
		*(volatile char *) page = 1;
		CHECK(madvise(page, PAGE, MADV_DONTNEED) == 0);
	}
	CHECK(munmap(window, 2 * WINDOW * PAGE) == 0);
}

static void random_ranges(ucp_context_h context, long count)
{
	enum { PAGES = 96 };
	char *arena = map(NULL, PAGES * PAGE);
	bool changed[PAGES];
	long stale = 0, hits = 0, fresh = 0;

	CHECK(fakeverbs_registrations);
	memset(changed, true, sizeof(changed));
	srandom(1);
	for (long round = 0; round < count; round++) {
		int from = (int) (random() % PAGES), most = PAGES - from, pages = 1 + (int) (random() % (most < 12 ? most : 12));
		char *at = arena + from * PAGE;
		bool must = memchr(changed + from, true, (size_t) pages) != NULL;
		long registered;

		switch (random() % 4) {
		case 0:
			CHECK(munmap(at, pages * PAGE) == 0);
			map(at, pages * PAGE);
			memset(changed + from, true, (size_t) pages);
			break;
		case 1:
			CHECK(madvise(at, pages * PAGE, MADV_DONTNEED) == 0);
			memset(changed + from, true, (size_t) pages);
			break;
		default:
			registered = use(context, at, pages * PAGE);
			stale += must && registered == 0;
			fresh += registered > 0;
			hits += registered == 0;
			memset(changed + from, false, (size_t) pages);
		}
	}
	printf("random ranges: %ld registered, %ld hits, %ld stale\n", fresh, hits, stale);
}

int main(int argc, char **argv)
{
	long count = argc > 1 ? atol(argv[1]) : 100000, early;
	ucp_params_t parameters = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_RMA };
	ucp_config_t *config;
	ucp_context_h context;
	char *buffer;

	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(ucp_config_read(NULL, NULL, &config) == UCS_OK);
	CHECK(ucp_init(&parameters, config, &context) == UCS_OK);
	ucp_config_release(config);
	if (argc > 2 && strcmp(argv[2], "random") == 0) {
		random_ranges(context, count);
		ucp_cleanup(context);
		return 0;
	}
	buffer = map(NULL, LENGTH);
	use(context, buffer, LENGTH);

	rounds(count / 10);
	early = resident_kib();
	rounds(count - count / 10);
	printf("UCX %s: resident memory grew by %ld KiB in %ld rounds\n", ucp_get_version_string(), resident_kib() - early,
	       count - count / 10);
	if (fakeverbs_registrations) {
		long same = use(context, buffer, LENGTH), others;

		CHECK(munmap(buffer, LENGTH) == 0);
		map(buffer, LENGTH);
		others = use(context, buffer, LENGTH);
		printf("registrations: %ld of the same pages, %ld of others\n", same, others);
	}
	ucp_cleanup(context);
	return 0;
}
