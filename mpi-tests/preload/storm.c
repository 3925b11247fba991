/*
 * A server after vLLM #24264 and UCX #5131: UCX registers a buffer once and is then idle,
 * while the rest of the program maps and unmaps without end.
 *
 *   storm N     N rounds; by how much the resident memory grew between the tenth part
 *               and the end, and whether UCX still notices that its buffer is gone
 */
#define _GNU_SOURCE
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

static char *map(size_t length)
{
	char *buffer = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(buffer != MAP_FAILED);
	return buffer;
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

int main(int argc, char **argv)
{
	long count = argc > 1 ? atol(argv[1]) : 100000, early;
	ucp_params_t parameters = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_RMA };
	ucp_mem_map_params_t buffer = {
		.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
		.length = LENGTH,
	};
	ucp_config_t *config;
	ucp_context_h context;
	ucp_mem_h region;

	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(ucp_config_read(NULL, NULL, &config) == UCS_OK);
	CHECK(ucp_init(&parameters, config, &context) == UCS_OK);
	ucp_config_release(config);
	buffer.address = map(LENGTH);
	CHECK(ucp_mem_map(context, &buffer, &region) == UCS_OK);
	CHECK(ucp_mem_unmap(context, region) == UCS_OK);

	rounds(count / 10);
	early = resident_kib();
	rounds(count - count / 10);
	printf("UCX %s: resident memory grew by %ld KiB in %ld rounds\n", ucp_get_version_string(), resident_kib() - early,
	       count - count / 10);
	CHECK(munmap(buffer.address, LENGTH) == 0);
	ucp_cleanup(context);
	return 0;
}
