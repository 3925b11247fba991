/* A constructor, which has the loader's lock, waits for a mutex whose owner uses a registry for the first
 * time in its thread. Ends by SIGALRM where pinyard waits for the loader there.
 *
 *   waits PLUGIN       PLUGIN: this file, compiled with -DPLUGIN
 */
#include "../waiting_constructor.h"

#ifndef PLUGIN
#include <pinyard.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static pny_registry registry;

static int register_memory(void *user, void *address, size_t length, pny_access access, struct pny_key *key)
{
	(void)user, (void)address, (void)length, (void)access;
	memset(key, 0, sizeof *key);
	return 0;
}

static int deregister_memory(void *user, const struct pny_key *key, void *address, size_t length)
{
	(void)user, (void)key, (void)address, (void)length;
	return 0;
}

static void use(void)
{
	enum { LENGTH = 65536 };
	void *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct pny_lease lease;

	memset(&lease, 0, sizeof lease);
	if (memory == MAP_FAILED || pny_get(registry, memory, LENGTH, PNY_LOCAL_WRITE, &lease) != PNY_OK ||
		pny_put(&lease) != PNY_OK) {
		fprintf(stderr, "pny_get: %s\n", pny_last_error());
		exit(1);
	}
	munmap(memory, LENGTH);
}

int main(int count, char **words)
{
	struct pny_backend_ops ops = {.size = sizeof ops, .register_memory = register_memory, .deregister_memory = deregister_memory};
	pny_registry_config config = {.size = sizeof config, .ops = &ops};

	if (count < 2 || pny_registry_create(&config, &registry) != PNY_OK) {
		fprintf(stderr, "pny_registry_create: %s\n", pny_last_error());
		return 1;
	}
	use();
	alarm(60);
	if (work_while_a_constructor_waits(words[1], use) != 0)
		return 1;
	pny_registry_destroy(registry);
	puts("completed");
	return 0;
}
#endif
