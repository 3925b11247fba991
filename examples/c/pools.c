/*
 * Pools: memory that is registered once, with its slab. A block's key is its slab's, and
 * where it lies there is a subtraction; device memory is in the order of streams. The
 * device is simulated unless the program is told of a real one.
 *
 *   pools [notify] [cuda]     notify: where libc may not be patched
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pinyard.h>

#define CHECK(call) \
	do { \
		if ((call) != PNY_OK) { \
			fprintf(stderr, "pools: line %d: %s\n", __LINE__, pny_last_error()); \
			exit(1); \
		} \
	} while (0)

#define EXPECT(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "pools: line %d: not so: %s: %s\n", __LINE__, #condition, \
				pny_last_error()); \
			exit(1); \
		} \
	} while (0)

enum { BLOCKS = 16, BYTES = 100000 };

/* ---- A network card: it counts, and knows memory by the slab's address. --------------- */

static int registrations, deregistrations;

static int card_register(void *user, void *address, size_t length, pny_access access, pny_key *key)
{
	(void) user, (void) length, (void) access;
	registrations++;
	key->lkey = (uint64_t) (uintptr_t) address;
	return 0;
}

static int card_deregister(void *user, const pny_key *key, void *address, size_t length)
{
	(void) user, (void) key, (void) address, (void) length;
	deregistrations++;
	return 0;
}

static pny_registry registry_of_card(int notify)
{
	pny_registry_config config;
	pny_registry registry;
	pny_backend_ops ops;

	memset(&ops, 0, sizeof(ops));
	ops.size = sizeof(ops);
	ops.name = "card";
	ops.register_memory = card_register;
	ops.deregister_memory = card_deregister;
	memset(&config, 0, sizeof(config));
	config.size = sizeof(config);
	config.ops = &ops;
	config.flags = notify ? PNY_NOTIFY_ONLY : 0;
	CHECK(pny_registry_create(&config, &registry));
	return registry;
}

static pny_pool_counts counts_of(pny_pool pool)
{
	pny_pool_counts counts;

	memset(&counts, 0, sizeof(counts));
	counts.size = sizeof(counts);
	CHECK(pny_pool_stats(pool, &counts));
	return counts;
}

/* ---- Host and pinned memory ----------------------------------------------------------- */

/* A send that the card has not finished: 0 until it has. */
static int sent(void *user)
{
	return *(int *) user;
}

static void host_memory(pny_registry registry, pny_memory memory, pny_driver driver)
{
	const int before = registrations;
	void *blocks[BLOCKS], *batch[3];
	const size_t sizes[3] = {64, 4096, 300000};
	int done = 0;
	pny_block_place place;
	pny_pool_config config;
	pny_pool pool;

	memset(&config, 0, sizeof(config));
	config.size = sizeof(config);
	config.memory = memory;
	config.driver = driver;
	config.registry = registry;
	config.slab_bytes = 4 * 1024 * 1024;
	CHECK(pny_pool_create(&config, &pool));
	CHECK(pny_pool_warmup(pool, BYTES, BLOCKS, NULL));
	EXPECT(registrations == before + 1);

	memset(&place, 0, sizeof(place));
	place.size = sizeof(place);
	for (int block = 0; block < BLOCKS; block++) {
		CHECK(pny_pool_alloc(pool, BYTES, NULL, &blocks[block]));
		memset(blocks[block], block, BYTES);
		/* What a send names: the key, and where in the slab. */
		CHECK(pny_pool_find(pool, (char *) blocks[block] + 100, &place));
		EXPECT(place.key.lkey == place.slab_base);
		EXPECT(place.slab_base + place.offset == (uintptr_t) blocks[block] + 100);
	}
	EXPECT(registrations == before + 1);
	EXPECT(pny_pool_destroy(pool) == PNY_ERR_BUSY);

	/* One is still being sent when the program gives it up. */
	CHECK(pny_pool_defer_until(pool, blocks[0], sent, &done));
	EXPECT(pny_pool_free(pool, blocks[0]) == PNY_ERR_STALE);
	for (int block = 1; block < BLOCKS; block++)
		CHECK(pny_pool_free(pool, blocks[block]));
	CHECK(pny_pool_trim(pool, NULL));
	EXPECT(counts_of(pool).waiting_blocks == 1);
	done = 1;

	CHECK(pny_pool_alloc_batch(pool, sizes, 3, NULL, batch));
	for (int block = 0; block < 3; block++)
		CHECK(pny_pool_free(pool, batch[block]));
	CHECK(pny_pool_alloc_aligned(pool, 100, 65536, NULL, &batch[0]));
	EXPECT((uintptr_t) batch[0] % 65536 == 0);
	CHECK(pny_pool_free(pool, batch[0]));
	printf("%" PRIu64 " allocations, %" PRIu64 " slabs made\n", counts_of(pool).allocations,
	       counts_of(pool).slabs_made);
	CHECK(pny_pool_destroy(pool));
	EXPECT(registrations == deregistrations);
}

/* ---- Device memory -------------------------------------------------------------------- */

static void device_memory(pny_driver driver)
{
	const size_t sizes[3] = {100, 70000, 70000};
	pny_stream compute, copies;
	void *block, *batch[3];
	pny_pool_config config;
	pny_pool pool;

	memset(&config, 0, sizeof(config));
	config.size = sizeof(config);
	config.memory = PNY_MEMORY_DEVICE;
	config.driver = driver;
	config.slab_bytes = 4 * 1024 * 1024;
	config.limit = 64 * 1024 * 1024;
	CHECK(pny_pool_create(&config, &pool));
	CHECK(pny_stream_create(pool, NULL, &compute));
	/* A real program has streams of its own, and the default stream but once. */
	if (driver != PNY_DRIVER_SIMULATED) {
		EXPECT(pny_stream_create(pool, NULL, &copies) == PNY_ERR_BUSY);
		copies = compute;
	} else {
		CHECK(pny_stream_create(pool, NULL, &copies));
	}

	CHECK(pny_pool_warmup(pool, BYTES, BLOCKS, compute));
	for (int round = 0; round < 100; round++) {
		CHECK(pny_pool_alloc(pool, BYTES, compute, &block));
		CHECK(pny_pool_record_use(pool, block, copies));
		CHECK(pny_pool_free(pool, block));
		CHECK(pny_pool_alloc_batch(pool, sizes, 3, copies, batch));
		CHECK(pny_pool_free_after(pool, batch[0], compute));
		CHECK(pny_pool_free(pool, batch[1]));
		CHECK(pny_pool_free(pool, batch[2]));
	}
	EXPECT(pny_pool_alloc(pool, BYTES, NULL, &block) == PNY_ERR_INVALID);
	EXPECT(pny_pool_alloc(pool, 65 * 1024 * 1024, compute, &block) == PNY_ERR_LIMIT && !block);
	EXPECT(pny_pool_free(pool, &config) == PNY_ERR_STALE);
	CHECK(pny_pool_alloc_aligned(pool, BYTES, 65536, compute, &block));
	EXPECT((uintptr_t) block % 65536 == 0);
	EXPECT(pny_pool_free(pool, (char *) block + 1) == PNY_ERR_INVALID);
	CHECK(pny_pool_free(pool, block));
	EXPECT(pny_pool_destroy(pool) == PNY_ERR_BUSY);
	if (copies != compute)
		CHECK(pny_stream_destroy(copies));
	CHECK(pny_stream_destroy(compute));
	CHECK(pny_pool_trim(pool, NULL));
	EXPECT(counts_of(pool).slabs == 0 && counts_of(pool).live_blocks == 0);
	CHECK(pny_pool_destroy(pool));
	EXPECT(pny_pool_destroy(pool) == PNY_ERR_STALE);
}

int main(int argc, char **argv)
{
	pny_driver driver = PNY_DRIVER_SIMULATED;
	pny_registry registry;
	int notify = 0;

	for (int argument = 1; argument < argc; argument++) {
		notify |= strcmp(argv[argument], "notify") == 0;
		if (strcmp(argv[argument], "cuda") == 0)
			driver = PNY_DRIVER_CUDA;
	}
	registry = registry_of_card(notify);
	host_memory(registry, PNY_MEMORY_HOST, 0);
	host_memory(registry, PNY_MEMORY_PINNED, driver);
	device_memory(driver);
	CHECK(pny_registry_destroy(registry));
	printf("completed\n");
	return 0;
}
