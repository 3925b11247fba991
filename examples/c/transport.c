/*
 * A transport that brings its own registration functions, and has pinyard cache what
 * they make. The device here is a table: a key is a row, and a row knows which pages it
 * was made for, as a network card does.
 *
 *   transport          changes of the mapping are noticed
 *   transport notify   where libc may not be patched: the program tells of them
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <pinyard.h>

enum { ROWS = 64, ROUNDS = 100 };

/* ---- The device -------------------------------------------------------------------- */

struct row {
	void *address;
	size_t length;
};

struct device {
	pthread_mutex_t lock;
	struct row rows[ROWS];
	int registrations;
	int released;
};

static int device_register(void *user, void *address, size_t length, pny_access access,
			   pny_key *key)
{
	struct device *device = (struct device *) user;
	int errno_ = ENOSPC;

	(void) access;
	pthread_mutex_lock(&device->lock);
	for (uint64_t row = 0; row < ROWS; row++) {
		if (device->rows[row].length == 0) {
			device->rows[row].address = address;
			device->rows[row].length = length;
			device->registrations++;
			key->lkey = key->rkey = row;
			errno_ = 0;
			break;
		}
	}
	pthread_mutex_unlock(&device->lock);
	return errno_;
}

static int device_deregister(void *user, const pny_key *key, void *address, size_t length)
{
	struct device *device = (struct device *) user;
	struct row *row = &device->rows[key->lkey];
	int errno_ = EINVAL;

	pthread_mutex_lock(&device->lock);
	if (row->address == address && row->length == length) {
		row->length = 0;
		errno_ = 0;
	}
	pthread_mutex_unlock(&device->lock);
	return errno_;
}

static void device_release(void *user)
{
	((struct device *) user)->released++;
}

/* ---- The program ------------------------------------------------------------------- */

/* Ends the program where a call fails, with pinyard's own words. */
#define CHECK(call) \
	do { \
		if ((call) != PNY_OK) { \
			fprintf(stderr, "transport: %s\n", pny_last_error()); \
			exit(1); \
		} \
	} while (0)

#define EXPECT(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "transport: line %d: not so: %s\n", __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)

static void *fresh_pages(size_t length)
{
	void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	EXPECT(at != MAP_FAILED);
	return at;
}

/* Registers a buffer as for each message that is sent from it; most are hits. */
static uint64_t send_from(pny_registry registry, const void *buffer, size_t length, int messages)
{
	uint64_t key = 0;

	for (int message = 0; message < messages; message++) {
		pny_lease lease;

		CHECK(pny_get(registry, buffer, length, PNY_LOCAL_READ, &lease));
		key = lease.key.lkey;
		EXPECT(lease.base <= (uintptr_t) buffer);
		EXPECT((uintptr_t) buffer + length <= lease.base + lease.length);
		/* Here the device would be given the key and the address. */
		CHECK(pny_put(&lease));
	}
	return key;
}

int main(int argc, char **argv)
{
	static struct device device;
	const int notify = argc == 2 && strcmp(argv[1], "notify") == 0;
	const size_t length = 64 * 1024;
	pny_backend_ops ops;
	pny_registry_config config;
	pny_registry_counts counts;
	pny_registry registry;
	char why[512];

	pthread_mutex_init(&device.lock, NULL);
	memset(&ops, 0, sizeof(ops));
	ops.size = sizeof(ops);
	ops.name = "table";
	ops.register_memory = device_register;
	ops.deregister_memory = device_deregister;
	ops.release = device_release;
	ops.max_regions = ROWS;

	memset(&config, 0, sizeof(config));
	config.size = sizeof(config);
	config.backend = PNY_BACKEND_OPS;
	config.flags = notify ? PNY_NOTIFY_ONLY : 0;
	config.ops = &ops;
	config.user = &device;
	config.budget = 16 * 1024 * 1024;
	CHECK(pny_registry_create(&config, &registry));

	for (int round = 0; round < ROUNDS; round++) {
		void *buffer = fresh_pages(length);

		memset(buffer, round, length);
		send_from(registry, buffer, length, 10);
		/* Other pages at the same address, as allocators do it. */
		if (notify)
			pny_notify_unmapped(buffer, length);
		EXPECT(mmap(buffer, length, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == buffer);
		EXPECT(device.registrations == 2 * round + 1);
		send_from(registry, buffer, length, 10);
		EXPECT(device.registrations == 2 * round + 2);
		if (round == ROUNDS - 1) {
			CHECK(pny_explain(registry, buffer, length, PNY_LOCAL_READ, why, sizeof(why),
					  NULL));
			printf("before munmap: %s\n", why);
		}
		if (notify)
			pny_notify_unmapped(buffer, length);
		EXPECT(munmap(buffer, length) == 0);
		if (round == ROUNDS - 1) {
			pny_key key;

			CHECK(pny_explain(registry, buffer, length, PNY_LOCAL_READ, why, sizeof(why),
					  NULL));
			printf("after munmap: %s\n", why);
			EXPECT(pny_lookup(registry, buffer, length, PNY_LOCAL_READ, &key) ==
			       PNY_ERR_NOT_FOUND);
		}
	}

	/* What is stale is deregistered within 100 ms; or now. */
	CHECK(pny_flush(registry));
	memset(&counts, 0, sizeof(counts));
	counts.size = sizeof(counts);
	CHECK(pny_registry_stats(registry, &counts));
	printf("%" PRIu64 " hits, %" PRIu64 " misses, %" PRIu64 " registrations, %" PRIu64
	       " bytes pinned\n",
	       counts.hits, counts.misses, counts.registrations, counts.pinned_bytes);
	EXPECT(counts.registrations == 2 * ROUNDS);
	EXPECT(counts.hits == 18 * ROUNDS);
	EXPECT(counts.pinned_bytes == 0);

	CHECK(pny_registry_destroy(registry));
	EXPECT(device.released == 1);
	EXPECT(pny_registry_destroy(registry) == PNY_ERR_STALE);
	printf("twice: %s\n", pny_last_error());
	for (int row = 0; row < ROWS; row++)
		EXPECT(device.rows[row].length == 0);
	pthread_mutex_destroy(&device.lock);
	printf("completed\n");
	return 0;
}
