/* Maps, empties and unmaps a page so many times. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

int main(int argc, char **argv)
{
	for (int round = argc > 1 ? atoi(argv[1]) : 1; round > 0; round--) {
		void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (page == MAP_FAILED || madvise(page, 4096, MADV_DONTNEED) || munmap(page, 4096))
			return 1;
	}
	return 0;
}
