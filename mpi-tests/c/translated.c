/*
 * Under valgrind, libc's code runs as a translation. An entry that was translated before it was
 * patched keeps its old code, and the registry is refused. Where none was, the registry works,
 * and keeps nothing: valgrind's own code changes mappings past libc, and userfaultfd(2) is
 * unknown to it.
 *
 *   translated         nothing is kept
 *   translated early   syscall(2) runs before the hooks are there: refused
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <pinyard.h>

enum { ROUNDS = 20, LENGTH = 64 * 1024 };

static int register_memory(void *user, void *address, size_t length, pny_access access, pny_key *key)
{
	(void) address;
	(void) length;
	(void) access;
	key->lkey = key->rkey = ++*(uint32_t *) user;
	return 0;
}

static int deregister_memory(void *user, const pny_key *key, void *address, size_t length)
{
	(void) user;
	(void) key;
	(void) address;
	(void) length;
	return 0;
}

#define EXPECT(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "translated: line %d: not so: %s: %s\n", __LINE__, #condition, \
				pny_last_error()); \
			exit(1); \
		} \
	} while (0)

int main(int argc, char **argv)
{
	const int early = argc == 2 && strcmp(argv[1], "early") == 0;
	uint32_t registrations = 0;
	pny_backend_ops ops;
	pny_registry_config config;
	pny_registry registry;
	void *buffer;

	memset(&ops, 0, sizeof(ops));
	ops.size = sizeof(ops);
	ops.name = "numbers";
	ops.register_memory = register_memory;
	ops.deregister_memory = deregister_memory;
	memset(&config, 0, sizeof(config));
	config.size = sizeof(config);
	config.backend = PNY_BACKEND_OPS;
	config.ops = &ops;
	config.user = &registrations;
	if (early) {
		EXPECT(syscall(SYS_getpid) == getpid());
		EXPECT(pny_registry_create(&config, &registry) == PNY_ERR_HOOKS_INCOMPLETE);
		EXPECT(strstr(pny_last_error(), "syscall") != NULL);
		printf("completed\n");
		return 0;
	}
	EXPECT(pny_registry_create(&config, &registry) == PNY_OK);
	buffer = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(buffer != MAP_FAILED);
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		pny_lease lease;

		EXPECT(pny_get(registry, buffer, LENGTH, PNY_LOCAL_READ, &lease) == PNY_OK);
		EXPECT(registrations == round && lease.key.lkey == round);
		EXPECT(pny_put(&lease) == PNY_OK);
	}
	EXPECT(pny_registry_destroy(registry) == PNY_OK);
	printf("completed\n");
	return 0;
}
