/*
 * A patcher as libfabric's memhooks and Open MPI's: 13 bytes (mov r11, imm64; jmp *r11)
 * over whatever dlsym gives for a name. Patches the named functions in turn, calls each
 * in turn, and counts: where an entry lies closer than 13 bytes to the next, one patch
 * has damaged the other.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST 16
#define HOOK(n) static long hook_##n(void) { return n; }
HOOK(0) HOOK(1) HOOK(2) HOOK(3) HOOK(4) HOOK(5) HOOK(6) HOOK(7)
HOOK(8) HOOK(9) HOOK(10) HOOK(11) HOOK(12) HOOK(13) HOOK(14) HOOK(15)

static long (*const hooks[MOST])(void) = {
	hook_0, hook_1, hook_2, hook_3, hook_4, hook_5, hook_6, hook_7,
	hook_8, hook_9, hook_10, hook_11, hook_12, hook_13, hook_14, hook_15,
};

/* By a pointer from before: mprotect may be one of the patched. */
static int (*protect)(void *, size_t, int) = mprotect;

static void patch(unsigned char *entry, long (*hook)(void))
{
	unsigned char code[13] = { 0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3 };
	void *page = (void *) ((uintptr_t) entry & ~4095ul);

	memcpy(code + 2, &hook, sizeof hook);
	if (protect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC))
		_exit(2);
	memcpy(entry, code, sizeof code);
	if (protect(page, 8192, PROT_READ | PROT_EXEC))
		_exit(2);
}

int main(int argc, char **argv)
{
	long (*entries[MOST])(void);
	int count = argc - 1, right = 0;

	if (count < 1 || count > MOST)
		return 2;
	for (int index = 0; index < count; index++) {
		*(void **) &entries[index] = dlsym(RTLD_DEFAULT, argv[index + 1]);
		if (!entries[index]) {
			fprintf(stderr, "no %s here\n", argv[index + 1]);
			return 2;
		}
	}
	for (int index = 0; index < count; index++)
		patch(*(unsigned char **) &entries[index], hooks[index]);
	for (int index = 0; index < count; index++)
		right += entries[index]() == index;
	printf("right %d of %d\n", right, count);
	fflush(stdout);
	_exit(right != count); /* Whatever was patched is not for the program's end. */
}
