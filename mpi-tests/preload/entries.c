/*
 * A part of client.c's program: opens the plugin that UCP_PLUGIN names before main, and
 * prints at the end whose code stands at the entries of libc's functions, as two runs
 * of one program can be compared: objects and offsets in them, no addresses.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const functions[] = {
	"munmap", "mmap", "mremap", "madvise", "brk", "sbrk", "shmat", "shmdt", "mprotect", "syscall",
	"process_madvise", "remap_file_pages", "ftruncate", "truncate", "fallocate", "_dl_debug_state",
};

static void print_place(const char *before, const void *at)
{
	Dl_info info;

	if (dladdr(at, &info) && info.dli_fname)
		printf("%s %s+0x%zx", before, strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname,
		       (size_t) ((const char *) at - (const char *) info.dli_fbase));
	else
		printf("%s no object", before);
}

/* A jump leads to an address that differs by run; so does what follows a nearer one. */
static void print_entry(const char *function, const unsigned char *at)
{
	int32_t near;
	void *far;

	print_place(function, at);
	if (at[0] == 0xe9) {
		memcpy(&near, at + 1, sizeof near);
		print_place(" jumps to", at + 5 + near);
	} else if (at[0] == 0x49 && at[1] == 0xbb) {
		memcpy(&far, at + 2, sizeof far);
		print_place(" jumps to", far);
	} else {
		for (int byte = 0; byte < 16; byte++)
			printf(" %02x", at[byte]);
	}
	putchar('\n');
}

static void print_entries(void)
{
	void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);

	for (size_t index = 0; index < sizeof functions / sizeof *functions; index++) {
		print_entry(functions[index], dlsym(RTLD_DEFAULT, functions[index]));
		print_entry("      in libc:", dlsym(libc, functions[index]));
	}
	printf("FI_MR_CACHE_MAX_COUNT %s\n", getenv("FI_MR_CACHE_MAX_COUNT") ? getenv("FI_MR_CACHE_MAX_COUNT") : "not set");
	printf("libgcc_s %s\n", dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_NOLOAD) ? "loaded" : "not loaded");
	fflush(stdout);
}

__attribute__((constructor)) static void open_plugin(void)
{
	const char *path = getenv("UCP_PLUGIN");
	void *plugin = path ? dlopen(path, RTLD_NOW) : NULL;
	int (*start)(void);
	int failed;

	*(void **) &start = plugin ? dlsym(plugin, "plugin_start") : NULL;
	failed = path ? start ? start() : -1 : 0;
	if (failed) {
		fprintf(stderr, "%s: UCX did not start: %d\n", path, failed);
		_exit(3);
	}
	atexit(print_entries);
}
