/*
 * The registration cache from C++: a transport's own backend as a class, leases that give
 * themselves back, and what is thrown.
 *
 *   transport          changes of the mapping are noticed
 *   transport notify   where libc may not be patched: the program tells of them
 */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <sys/mman.h>

#include <pinyard.hpp>

#define EXPECT(condition) \
	do { \
		if (!(condition)) { \
			std::fprintf(stderr, "transport: line %d: not so: %s\n", __LINE__, #condition); \
			std::exit(1); \
		} \
	} while (0)

namespace {

std::atomic<int> registered{0}, deregistered{0}, gone{0};

struct counting : pinyard::backend {
	const char *name() const noexcept override { return "counting"; }
	int register_memory(void *, std::size_t length, pny_access, pny_key &key) override
	{
		if (length > 1024 * 1024)
			throw std::runtime_error("too long for this device");
		key.lkey = static_cast<std::uint64_t>(++registered);
		return 0;
	}
	int deregister_memory(const pny_key &, void *, std::size_t) override
	{
		deregistered++;
		return 0;
	}
	~counting() override { gone++; }
};

static_assert(!std::is_copy_constructible_v<pinyard::registry> && !std::is_copy_constructible_v<pinyard::lease>);
static_assert(std::is_nothrow_move_constructible_v<pinyard::lease> && std::is_nothrow_destructible_v<pinyard::registry>);

template <typename Call> pny_status status_of(Call call, const char *words)
{
	try {
		call();
	} catch (const pinyard::error &failure) {
		if (std::strstr(failure.what(), words) == nullptr) {
			std::fprintf(stderr, "transport: no '%s' in '%s'\n", words, failure.what());
			std::exit(1);
		}
		return failure.status();
	}
	return PNY_OK;
}

/* Pools: blocks go before their streams, those before the pool, and it before the registry. */
void pools(bool notify)
{
	auto config = pinyard::sized<pny_registry_config>();
	config.flags = notify ? PNY_NOTIFY_ONLY : 0;
	pinyard::registry registry(std::make_unique<counting>(), config);
	auto host = pinyard::sized<pny_pool_config>();
	host.registry = registry.handle();
	host.slab_bytes = 2 * 1024 * 1024;
	/* The counting backend refuses more than 1 MiB, and a slab has 2. */
	auto device = pinyard::sized<pny_pool_config>();
	device.memory = PNY_MEMORY_DEVICE;
	device.driver = PNY_DRIVER_SIMULATED;
	device.slab_bytes = 2 * 1024 * 1024;

	pinyard::pool refused(host);
	EXPECT(status_of([&] { refused.alloc(8); }, "counting's register_memory") == PNY_ERR_BACKEND);
	EXPECT(status_of([&] { registry.destroy(); }, "1 pool registered") == PNY_ERR_BUSY);
	refused.destroy();

	pinyard::pool pool(device);
	pinyard::stream first(pool), second(pool);
	pool.warmup(4096, 10, first);
	{
		pinyard::block one = pool.alloc(1000, first);
		pinyard::block two = pool.alloc_aligned(1000, 65536, first);
		std::vector<pinyard::block> three = pool.alloc_batch({100, 200000, 70000}, second);

		/* The simulated device's memory is the host's. */
		std::memset(one.data(), 1, one.size());
		EXPECT(reinterpret_cast<std::uintptr_t>(two.data()) % 65536 == 0);
		EXPECT(three.size() == 3 && three[1].size() == 200000);
		EXPECT(two.place().offset < two.place().slab_length);
		one.record_use(second);
		pinyard::block moved = std::move(two);
		EXPECT(moved && !two && pool.stats().live_blocks == 5);
		EXPECT(status_of([&] { pool.destroy(); }, "5 blocks in use") == PNY_ERR_BUSY);
		moved.free_after(second);
		static int asked;
		three[0].defer_until([](void *user) { return ++*static_cast<int *>(user); }, &asked);
		three[1].free();
		EXPECT(!moved && !three[0] && !three[1]);
	}
	first.destroy();
	second.destroy();
	pool.trim();
	EXPECT(pool.stats().slabs == 0);
	pool.destroy();
	/* Nobody has plugged pinyard in here. */
	EXPECT(status_of([] { pinyard::plugged(0).trim(); }, "allocate there first") == PNY_ERR_NOT_READY);
}

} /* namespace */

int main(int argc, char **argv)
{
	const bool notify = argc == 2 && std::strcmp(argv[1], "notify") == 0;
	auto config = pinyard::sized<pny_registry_config>();

	config.flags = notify ? PNY_NOTIFY_ONLY : 0;
	{
		pinyard::registry registry(std::make_unique<counting>(), config);
		const std::size_t length = 64 * 1024;
		void *pages = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		EXPECT(pages != MAP_FAILED);
		EXPECT(!registry.lookup(pages, length));
		pinyard::lease held = registry.get(pages, length);
		EXPECT(held && held.key().lkey == 1 && held.length() >= length);
		EXPECT(registry.lookup(pages, length)->lkey == 1);

		/* Moved, it is still one lease. */
		pinyard::lease moved = std::move(held);
		EXPECT(moved && !held);
		EXPECT(status_of([&] { registry.destroy(); }, "leases of 1 region") == PNY_ERR_BUSY);
		moved.put();
		EXPECT(!moved);
		moved.put(); /* nothing is held any more */

		if (notify)
			pinyard::hooks::notify_unmapped(pages, length);
		EXPECT(mmap(pages, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == pages);
		EXPECT(!registry.lookup(pages, length));
		EXPECT(registry.get(pages, length).key().lkey == 2);
		std::printf("%s\n", registry.explain(pages, length).c_str());

		std::vector<double> words(100000);
		EXPECT(registry.get(words).length() >= words.size() * sizeof(double));
		std::vector<char> many(8 * 1024 * 1024);
		EXPECT(status_of([&] { registry.get(many); }, "counting's register_memory") == PNY_ERR_BACKEND);
		EXPECT(status_of([&] { registry.get(nullptr, 8); }, "null pointer") == PNY_ERR_INVALID);

		registry.flush();
		EXPECT(registry.stats().pinned_bytes == 0 && registry.stats().registrations == 3);

		pinyard::registry other = std::move(registry);
		EXPECT(registry.handle() == nullptr && other.handle() != nullptr);
		if (notify)
			pinyard::hooks::notify_unmapped(pages, length);
		munmap(pages, length);
	}
	EXPECT(gone == 1 && registered == deregistered);

	pools(notify);
	EXPECT(gone == 2 && registered == deregistered);

	/* A backend whose registry is never made goes as well. */
	config.flags |= 1u << 31;
	EXPECT(status_of([&] { pinyard::registry(std::make_unique<counting>(), config); }, "no flag") == PNY_ERR_INVALID);
	EXPECT(gone == 3);
	if (!notify) {
		pinyard::session session;
		pinyard::hooks::verify();
		EXPECT(pinyard::hooks::report().find("munmap") != std::string::npos);
		session.finalize();
	}
	EXPECT(status_of([] { pinyard::check(pny_finalize()); }, "no pny_init") == PNY_ERR_NOT_READY);
	EXPECT(status_of([] { pinyard::libfabric::monitor_stats(); }, "no monitor") == PNY_ERR_NOT_READY);
	std::printf("pinyard %s\ncompleted\n", pinyard::version().c_str());
	return 0;
}
