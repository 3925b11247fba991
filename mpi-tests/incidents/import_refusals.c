/*
 * pny_libfabric_import_monitor() where it cannot succeed: a status and a text
 * that names the cause, and nothing imported.
 *
 *   order    every function before what it needs; then the import, twice
 *   late     a domain with a cache is open (needs the stand-in device)
 *   chosen   FI_MR_CACHE_MONITOR is set
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "incident.h"
#include "pinyard.h"

static void expect(pny_status status, pny_status expected, const char *text)
{
	printf("%d %s: %s\n", status, pny_strerror(status), pny_last_error());
	CHECK(status == expected, "%d instead of %d", status, expected);
	CHECK(strstr(pny_last_error(), text), "the text does not name '%s'", text);
}

static pny_status stats(void)
{
	pny_libfabric_monitor_counts counts = { .size = sizeof(counts) };

	return pny_libfabric_monitor_stats(&counts);
}

static void order(void)
{
	pny_libfabric_monitor_counts small = { .size = 8 };

	expect(pny_hooks_verify(), PNY_ERR_NOT_READY, "pny_hooks_install");
	expect(stats(), PNY_ERR_NOT_READY, "pny_libfabric_import_monitor");
	expect(pny_libfabric_monitor_stats(NULL), PNY_ERR_INVALID, "null");
	expect(pny_libfabric_monitor_stats(&small), PNY_ERR_INVALID, "size is 8");
	pny_notify_unmapped(NULL, 0);
	pny_notify_unmapped((void *) 4096, (size_t) -1);
	expect(pny_hooks_install(), PNY_OK, "");
	expect(pny_hooks_install(), PNY_OK, "");
	expect(pny_hooks_verify(), PNY_OK, "");
	expect(pny_libfabric_import_monitor(), PNY_OK, "");
	expect(pny_libfabric_import_monitor(), PNY_OK, "");
	expect(stats(), PNY_OK, "");
}

int main(int argc, char **argv)
{
	const char *which = argc == 2 ? argv[1] : "";

	if (strcmp(which, "order") == 0) {
		order();
	} else if (strcmp(which, "late") == 0) {
		struct fid_domain *domain = incident_open_domain();

		expect(pny_libfabric_import_monitor(), PNY_ERR_BUSY, "before the first fi_domain");
		expect(stats(), PNY_ERR_NOT_READY, "");
		CHECK_FI(fi_close(&domain->fid));
		/* The domain and its cache are gone: now there is room. */
		expect(pny_libfabric_import_monitor(), PNY_OK, "");
	} else if (strcmp(which, "chosen") == 0) {
		setenv("FI_MR_CACHE_MONITOR", "memhooks", 1);
		expect(pny_libfabric_import_monitor(), PNY_ERR_REFUSED, "FI_MR_CACHE_MONITOR is memhooks");
		unsetenv("FI_MR_CACHE_MONITOR");
		expect(pny_libfabric_import_monitor(), PNY_OK, "");
	} else {
		fprintf(stderr, "usage: %s order | late | chosen\n", argv[0]);
		return 2;
	}
	printf("completed\n");
	return 0;
}
