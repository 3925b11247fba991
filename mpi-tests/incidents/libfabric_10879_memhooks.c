/*
 * ofiwg/libfabric#10879 and #9594 without MPI: libfabric's own default monitor
 * (memhooks) tells the registration cache of a madvise from inside the call;
 * the cache holds its lock while it allocates; an allocator that calls madvise
 * hangs in the first registration.
 *
 * Run with the stand-in device preloaded.
 */
#include <stdio.h>

#include "incident.h"

int main(int argc, char **argv)
{
	enum mode mode = incident_begin(argc, argv);
	struct fid_domain *domain = incident_open_domain();

	incident_run(mode, domain, NULL);

	CHECK_FI(fi_close(&domain->fid));
	printf("completed\n");
	return 0;
}
