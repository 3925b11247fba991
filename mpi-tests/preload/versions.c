/*
 * Three parts of one test of whom fi_getinfo leads to (-DPART=…):
 *
 *   1  a libfabric.so.1 of two versions: each fi_getinfo says which it is
 *   2  a plugin that was linked against one of them
 *   3  a program that opens plugins with RTLD_LOCAL and asks each
 */
#if PART == 1
int old_getinfo(void), new_getinfo(void);
int old_getinfo(void) { return 100; }
int new_getinfo(void) { return 109; }
__asm__(".symver old_getinfo, fi_getinfo@FABRIC_1.0");
__asm__(".symver new_getinfo, fi_getinfo@@FABRIC_1.9");
unsigned fi_version(void);
unsigned fi_version(void) { return 1 << 16 | 17; }
const char *fi_strerror(int error);
const char *fi_strerror(int error) { return error ? "an error" : "none"; }
/* There is no cache. */
int fi_open(void);
int fi_open(void) { return -38; }
#elif PART == 2
int fi_getinfo(unsigned, const char *, const char *, unsigned long, const void *, void *);
int ask(void);
#ifdef OLD
__asm__(".symver fi_getinfo, fi_getinfo@FABRIC_1.0");
#endif
int ask(void) { return fi_getinfo(0, 0, 0, 0, 0, 0); }
#else
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	for (int at = 1; at < argc; at++) {
		void *plugin = dlopen(argv[at], RTLD_NOW | RTLD_LOCAL);
		int (*ask)(void);

		if (!plugin) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		*(void **) &ask = dlsym(plugin, "ask");
		printf("%d\n", ask());
	}
	printf("completed\n");
	return 0;
}
#endif
