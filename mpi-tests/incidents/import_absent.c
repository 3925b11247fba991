/*
 * pny_libfabric_import_monitor() where the loader finds no usable libfabric.so.1:
 * a status, with the loader's own words. Not linked against libfabric; run with
 * an LD_LIBRARY_PATH that leads to a file of that name which is no library.
 */
#include <stdio.h>
#include <string.h>

#include "pinyard.h"

int main(void)
{
	pny_status status = pny_libfabric_import_monitor();

	printf("%d %s: %s\n", status, pny_strerror(status), pny_last_error());
	if (status != PNY_ERR_ABSENT || !strstr(pny_last_error(), "libfabric.so.1")) {
		fprintf(stderr, "expected %d and the loader's words\n", PNY_ERR_ABSENT);
		return 1;
	}
	printf("completed\n");
	return 0;
}
