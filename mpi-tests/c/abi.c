/*
 * What a program that was compiled against the first header relies on: the numbers and
 * the layouts, printed, and every function of that header, called. Compiled against that
 * header (previous/pinyard.h) it must run with today's library, and print what it prints
 * when compiled against today's header.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <pinyard.h>

#define MEMBER(name) \
	printf("%s at %zu\n", #name, offsetof(pny_libfabric_monitor_counts, name))

static int failed;

static void expect(pny_status status, pny_status expected)
{
	printf("%d: %s\n", (int) status, pny_strerror(status));
	if (status != expected) {
		printf("instead of %d: %s\n", (int) expected, pny_last_error());
		failed = 1;
	}
}

int main(void)
{
	pny_libfabric_monitor_counts counts;

	printf("%d %d %d %d %d %d %d %d %d\n", PNY_OK, PNY_ERR_INVALID, PNY_ERR_HOOKS_INCOMPLETE,
	       PNY_ERR_ABSENT, PNY_ERR_BUSY, PNY_ERR_REFUSED, PNY_ERR_RESOURCES, PNY_ERR_NOT_READY,
	       PNY_ERR_INTERNAL);
	printf("%zu %zu\n", sizeof(pny_status), sizeof(counts));
	MEMBER(size);
	MEMBER(valid_calls);
	MEMBER(stale_answers);
	MEMBER(subscriptions);
	MEMBER(refusals);
	MEMBER(events);
	MEMBER(deliveries);
	MEMBER(keys);

	memset(&counts, 0xff, sizeof(counts));
	counts.size = 8;
	expect(pny_hooks_verify(), PNY_ERR_NOT_READY);
	expect(pny_libfabric_monitor_stats(NULL), PNY_ERR_INVALID);
	expect(pny_libfabric_monitor_stats(&counts), PNY_ERR_INVALID);
	counts.size = sizeof(counts);
	expect(pny_libfabric_monitor_stats(&counts), PNY_ERR_NOT_READY);
	if (counts.keys != UINT64_MAX)
		failed = 1;
	pny_notify_unmapped(NULL, 0);
	pny_notify_unmapped(&counts, sizeof(counts));
	expect(pny_hooks_install(), PNY_OK);
	expect(pny_hooks_verify(), PNY_OK);
	expect(pny_libfabric_import_monitor(), PNY_OK);
	expect(pny_libfabric_monitor_stats(&counts), PNY_OK);
	printf("%" PRIu64 " %" PRIu64 "\n", counts.valid_calls, counts.keys);
	if (counts.size != sizeof(counts) || counts.keys != 0 || *pny_last_error() != '\0')
		failed = 1;
	printf("%s\n", failed ? "FAILED" : "completed");
	return failed;
}
