/*
 * What a C program may get wrong: every call returns, with the status and with a text
 * that says what to do. Run plainly, under valgrind and under the sanitizers; `notify`
 * where libc may not be patched.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pinyard.h>

static int checks;

static void expect(pny_status status, pny_status expected, const char *text, int line)
{
	checks++;
	if (status == expected && strstr(pny_last_error(), text))
		return;
	fprintf(stderr, "misuse: line %d: %d instead of %d, or no '%s' in '%s'\n", line, status,
		expected, text, pny_last_error());
	exit(1);
}

#define EXPECT(call, status, text) expect(call, status, text, __LINE__)
#define TRUE(condition) expect((condition) ? PNY_OK : PNY_ERR_INTERNAL, PNY_OK, "", __LINE__)

static int answer, releases;

static int reg(void *user, void *address, size_t length, pny_access access, pny_key *key)
{
	(void) user, (void) length, (void) access;
	key->handle = (uint64_t) (uintptr_t) address;
	return answer;
}

static int dereg(void *user, const pny_key *key, void *address, size_t length)
{
	(void) user, (void) length;
	return key->handle == (uint64_t) (uintptr_t) address ? 0 : EINVAL;
}

static void release(void *user)
{
	(void) user;
	releases++;
}

static pny_lease contested;

static void *give_back(void *good)
{
	pny_lease copy = contested;

	*(int *) good = pny_put(&copy) == PNY_OK;
	return NULL;
}

/* A pool, its blocks and a stream: null, of another kind, twice, and after the end. */
static void pools(pny_registry registry)
{
	pny_pool_config config;
	pny_pool pool = NULL, device = NULL;
	pny_stream stream = NULL;
	void *block = NULL, *other = NULL;

	memset(&config, 0, sizeof(config));
	EXPECT(pny_pool_create(&config, &pool), PNY_ERR_INVALID, "sizeof(pny_pool_config)");
	config.size = sizeof(config);
	EXPECT(pny_pool_create(&config, &pool), PNY_ERR_INVALID, "registry");
	config.registry = registry;
	config.slab_bytes = 2u << 20;
	EXPECT(pny_pool_create(&config, &pool), PNY_OK, "");
	EXPECT(pny_pool_alloc(NULL, 100, NULL, &block), PNY_ERR_INVALID, "pny_pool is null");
	EXPECT(pny_pool_alloc((pny_pool) registry, 100, NULL, &block), PNY_ERR_STALE, "pny_pool");
	EXPECT(pny_pool_alloc(pool, 100, NULL, NULL), PNY_ERR_INVALID, "null pointer");
	EXPECT(pny_pool_alloc(pool, (size_t) -1, NULL, &block), PNY_ERR_INVALID, "exceed the address space");
	EXPECT(pny_pool_alloc(pool, 100, NULL, &block), PNY_OK, "");
	EXPECT(pny_registry_destroy(registry), PNY_ERR_BUSY, "1 pool registered with it");
	EXPECT(pny_pool_destroy(pool), PNY_ERR_BUSY, "1 block in use");
	EXPECT(pny_pool_free(pool, (char *) block + 1), PNY_ERR_INVALID, "not at its beginning");
	EXPECT(pny_pool_free(pool, block), PNY_OK, "");
	EXPECT(pny_pool_free(pool, block), PNY_ERR_STALE, "freed before");

	memset(&config, 0, sizeof(config));
	config.size = sizeof(config);
	config.memory = PNY_MEMORY_DEVICE;
	config.driver = PNY_DRIVER_SIMULATED;
	EXPECT(pny_pool_create(&config, &device), PNY_OK, "");
	EXPECT(pny_stream_create(pool, NULL, &stream), PNY_ERR_INVALID, "no streams");
	EXPECT(pny_stream_create(device, NULL, &stream), PNY_OK, "");
	EXPECT(pny_pool_alloc(device, 100, stream, &other), PNY_OK, "");
	EXPECT(pny_pool_free(pool, other), PNY_ERR_STALE, "another's");
	EXPECT(pny_pool_free(device, other), PNY_OK, "");
	EXPECT(pny_pool_destroy(device), PNY_ERR_BUSY, "stream");
	EXPECT(pny_stream_destroy(stream), PNY_OK, "");
	EXPECT(pny_stream_destroy(stream), PNY_ERR_STALE, "destroyed");
	EXPECT(pny_pool_destroy(device), PNY_OK, "");
	EXPECT(pny_pool_destroy(device), PNY_ERR_STALE, "destroyed");
	EXPECT(pny_pool_destroy(pool), PNY_OK, "");
	EXPECT(pny_pool_trim(pool, NULL), PNY_ERR_STALE, "destroyed");
}

int main(int argc, char **argv)
{
	pny_registry registry = NULL, none = NULL;
	pny_registry_counts counts;
	pny_registry_config config;
	pny_backend_ops ops;
	pny_lease lease, copy;
	pny_key key;
	size_t length = 0;
	char text[8];
	void *pages = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int status;
	pid_t child;

	TRUE(pages != MAP_FAILED);
	/* What a program has on its stack when it forgets to begin with zeros. */
	memset(&config, 0x5a, sizeof(config));
	EXPECT(pny_registry_create(&config, &registry), PNY_ERR_INVALID, "sizeof(pny_registry_config)");
	config.size = sizeof(config);
	EXPECT(pny_registry_create(&config, &registry), PNY_ERR_INVALID, "flags 0x5a5a5a5a");
	memset(&config, 0, sizeof(config));
	memset(&ops, 0, sizeof(ops));
	config.size = sizeof(config);
	EXPECT(pny_registry_create(&config, &registry), PNY_ERR_INVALID, "ops is null");
	config.ops = &ops;
	EXPECT(pny_registry_create(&config, &registry), PNY_ERR_INVALID, "sizeof(pny_backend_ops)");
	ops.size = sizeof(ops);
	EXPECT(pny_registry_create(&config, &registry), PNY_ERR_INVALID, "register_memory");
	ops.register_memory = reg;
	ops.deregister_memory = dereg;
	ops.release = release;
	config.device = "mlx5_0";
	EXPECT(pny_registry_create(&config, &registry), PNY_ERR_INVALID, "device is for");
	config.device = NULL;
	EXPECT(pny_registry_create(NULL, &registry), PNY_ERR_INVALID, "config is a null pointer");
	EXPECT(pny_registry_create(&config, NULL), PNY_ERR_INVALID, "registry is a null pointer");
	TRUE(registry == NULL && releases == 0);
	if (argc == 2 && strcmp(argv[1], "notify") == 0)
		config.flags = PNY_NOTIFY_ONLY;
	EXPECT(pny_registry_create(&config, &registry), PNY_OK, "");

	EXPECT(pny_get(none, pages, 8, 0, &lease), PNY_ERR_INVALID, "pny_registry_create makes one");
	EXPECT(pny_get((pny_registry) 0xdead, pages, 8, 0, &lease), PNY_ERR_STALE, "0xdead is no");
	EXPECT(pny_get((pny_registry) &config, pages, 8, 0, &lease), PNY_ERR_STALE, "pny_registry");
	EXPECT(pny_get(registry, pages, 8, 0, NULL), PNY_ERR_INVALID, "lease is a null pointer");
	EXPECT(pny_get(registry, NULL, 8, 0, &lease), PNY_ERR_INVALID, "null pointer");
	EXPECT(pny_get(registry, pages, 0, 0, &lease), PNY_ERR_INVALID, "empty range");
	EXPECT(pny_get(registry, pages, (size_t) -1, 0, &lease), PNY_ERR_INVALID, "wraps around");
	EXPECT(pny_get(registry, pages, 8, 1u << 31, &lease), PNY_ERR_INVALID, "access 0x80000000");
	TRUE(lease.ticket == 0 && lease.length == 0);
	EXPECT(pny_lookup(registry, pages, 8, 0, NULL), PNY_ERR_INVALID, "key is a null pointer");
	EXPECT(pny_lookup(registry, pages, 8, 0, &key), PNY_ERR_NOT_FOUND, "pny_lookup");
	EXPECT(pny_registry_stats(registry, NULL), PNY_ERR_INVALID, "counts is a null pointer");
	memset(&counts, 0xff, sizeof(counts));
	EXPECT(pny_registry_stats(registry, &counts), PNY_ERR_INVALID, "sizeof(pny_registry_counts)");
	EXPECT(pny_explain(registry, pages, 8, 0, NULL, 9, NULL), PNY_ERR_INVALID, "text is a null");
	EXPECT(pny_explain(registry, pages, 8, 0, text, sizeof(text), &length), PNY_OK, "");
	TRUE(strlen(text) == sizeof(text) - 1 && length > sizeof(text));

	EXPECT(pny_invalidate(registry, pages, (size_t) -1), PNY_ERR_INVALID, "wraps around");
	EXPECT(pny_invalidate(NULL, pages, 8), PNY_ERR_INVALID, "is null");
	if (config.flags == PNY_NOTIFY_ONLY) {
		EXPECT(pny_hooks_report(text, sizeof(text), &length), PNY_ERR_NOT_READY, "pny_init");
	} else {
		EXPECT(pny_hooks_report(NULL, 8, &length), PNY_ERR_INVALID, "null pointer");
		EXPECT(pny_hooks_report(text, sizeof(text), &length), PNY_OK, "");
		TRUE(strlen(text) == sizeof(text) - 1 && length > sizeof(text));
	}
	pools(registry);

	answer = EIO;
	EXPECT(pny_get(registry, pages, 8, 0, &lease), PNY_ERR_BACKEND, "errno 5");
	answer = 0;
	EXPECT(pny_get(registry, pages, 8, 0, &lease), PNY_OK, "");
	copy = lease;
	EXPECT(pny_registry_destroy(registry), PNY_ERR_BUSY, "leases of 1 region");
	EXPECT(pny_put(&lease), PNY_OK, "");
	EXPECT(pny_put(&lease), PNY_ERR_STALE, "given back before");
	EXPECT(pny_put(&copy), PNY_ERR_STALE, "given back before");
	EXPECT(pny_put(NULL), PNY_ERR_INVALID, "lease is a null pointer");

	for (int round = 0; round < 50; round++) {
		pthread_t threads[2];
		int good[2];

		EXPECT(pny_get(registry, pages, 8, 0, &contested), PNY_OK, "");
		for (int thread = 0; thread < 2; thread++)
			TRUE(pthread_create(&threads[thread], NULL, give_back, &good[thread]) == 0);
		for (int thread = 0; thread < 2; thread++)
			TRUE(pthread_join(threads[thread], NULL) == 0);
		TRUE(good[0] + good[1] == 1);
	}

	child = fork();
	if (child == 0) {
		EXPECT(pny_get(registry, pages, 8, 0, &lease), PNY_ERR_FORKED, "after forking");
		EXPECT(pny_registry_destroy(registry), PNY_OK, "");
		TRUE(releases == 0);
		_exit(0);
	}
	TRUE(child > 0 && waitpid(child, &status, 0) == child && status == 0);

	EXPECT(pny_registry_destroy(registry), PNY_OK, "");
	EXPECT(pny_registry_destroy(registry), PNY_ERR_STALE, "was destroyed");
	EXPECT(pny_flush(registry), PNY_ERR_STALE, "was destroyed");
	TRUE(releases == 1);
	TRUE(strcmp(pny_strerror(-1), "not a status of pinyard") == 0);
	munmap(pages, 16384);
	printf("%d checks\ncompleted\n", checks);
	return 0;
}
