/*
 * pinyard for C++17: the functions of pinyard.h, held by objects.
 *
 * A status other than PNY_OK is thrown as pinyard::error, with pny_last_error()'s text.
 * Objects are moved, not copied, and give back what they hold when they go; a destructor
 * throws nothing. What would fail there can be asked for beforehand: lease::put,
 * registry::destroy and the like.
 *
 * Threads, signals, fork, units: as pinyard.h says of the function that is called.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef PINYARD_HPP
#define PINYARD_HPP

#include <pinyard.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace pinyard {

/* A call that failed: its status, and pny_last_error()'s text as what(). */
class error : public std::runtime_error {
public:
	error(pny_status status, const std::string &text)
		: std::runtime_error(text.empty() ? pny_strerror(status) : text), status_(status)
	{
	}

	pny_status status() const noexcept { return status_; }

private:
	pny_status status_;
};

/* Throws unless `status` is PNY_OK. By the thread whose call it was, before its next one. */
inline void check(pny_status status)
{
	if (status != PNY_OK)
		throw error(status, pny_last_error());
}

/* A structure of pinyard.h that begins with `size`: zeros, with that set. */
template <typename T> T sized() noexcept
{
	T made{};
	made.size = sizeof(T);
	return made;
}

inline std::string version() { return pny_version(); }

namespace detail {

/* A text of a function that fills it as snprintf does, however long it is. */
template <typename Fill> std::string text(Fill fill)
{
	std::string said;
	std::size_t length = 0;

	/* It may have grown in between. */
	for (;;) {
		check(fill(said.data(), said.empty() ? 0 : said.size() + 1, &length));
		if (length <= said.size()) {
			said.resize(length);
			return said;
		}
		said.resize(length);
	}
}

} /* namespace detail */

/* pny_init and pny_finalize, for as long as it lives. */
class session {
public:
	session()
	{
		const pny_status status = pny_init();

		if (status != PNY_OK) {
			const error failure(status, pny_last_error());
			pny_finalize(); /* owed all the same */
			throw failure;
		}
	}
	session(session &&other) noexcept : held_(std::exchange(other.held_, false)) {}
	session &operator=(session &&other) noexcept
	{
		std::swap(held_, other.held_);
		return *this;
	}
	~session()
	{
		if (held_)
			pny_finalize();
	}

	/* pny_finalize: fails where something was not destroyed, and changes nothing then. */
	void finalize()
	{
		if (held_)
			check(pny_finalize());
		held_ = false;
	}

private:
	bool held_ = true;
};

namespace hooks {

inline void install() { check(pny_hooks_install()); }
inline void verify() { check(pny_hooks_verify()); }
inline std::string report()
{
	return detail::text([](char *text, std::size_t capacity, std::size_t *length) {
		return pny_hooks_report(text, capacity, length);
	});
}
/* From anywhere, signal handlers included. */
inline void notify_unmapped(const void *address, std::size_t length) noexcept
{
	pny_notify_unmapped(address, length);
}

} /* namespace hooks */

namespace libfabric {

inline void import_monitor() { check(pny_libfabric_import_monitor()); }
inline pny_libfabric_monitor_counts monitor_stats()
{
	auto counts = sized<pny_libfabric_monitor_counts>();
	check(pny_libfabric_monitor_stats(&counts));
	return counts;
}

} /* namespace libfabric */

/* A registration that is held. */
class lease {
public:
	lease() noexcept = default;
	lease(lease &&other) noexcept : held_(std::exchange(other.held_, pny_lease{})) {}
	lease &operator=(lease &&other) noexcept
	{
		std::swap(held_, other.held_);
		return *this;
	}
	~lease()
	{
		if (held_.ticket != 0)
			pny_put(&held_);
	}

	explicit operator bool() const noexcept { return held_.ticket != 0; }
	const pny_key &key() const noexcept { return held_.key; }
	/* Address and bytes of the registration. */
	std::uint64_t base() const noexcept { return held_.base; }
	std::uint64_t length() const noexcept { return held_.length; }

	/* Gives it back now. */
	void put()
	{
		if (held_.ticket != 0)
			check(pny_put(&held_));
	}

private:
	friend class registry;
	pny_lease held_{};
};

/*
 * Functions that register, of a transport that brings its own; see pny_backend_ops. An
 * exception that leaves one of them is ENOMEM where it is std::bad_alloc, otherwise EIO.
 */
class backend {
public:
	backend() = default;
	backend(const backend &) = delete;
	backend &operator=(const backend &) = delete;
	virtual ~backend() = default;

	virtual const char *name() const noexcept { return "c++"; }
	virtual int register_memory(void *address, std::size_t length, pny_access access, pny_key &key) = 0;
	virtual int deregister_memory(const pny_key &key, void *address, std::size_t length) = 0;
};

/*
 * A registration cache. Leases go before it: one of which leases are held is not
 * destroyed by the destructor, and stays to the end of the process.
 */
class registry {
public:
	explicit registry(const pny_registry_config &config) { check(pny_registry_create(&config, &handle_)); }

	/* Over functions of the caller's own; `config.backend`, `ops` and `user` are set here. */
	explicit registry(std::unique_ptr<backend> own,
			  pny_registry_config config = sized<pny_registry_config>())
	{
		auto ops = sized<pny_backend_ops>();

		ops.name = own->name();
		ops.register_memory = [](void *user, void *address, std::size_t length, pny_access access,
					 pny_key *key) noexcept {
			return guarded([&] {
				return static_cast<backend *>(user)->register_memory(address, length, access, *key);
			});
		};
		ops.deregister_memory = [](void *user, const pny_key *key, void *address,
					   std::size_t length) noexcept {
			return guarded([&] {
				return static_cast<backend *>(user)->deregister_memory(*key, address, length);
			});
		};
		ops.release = [](void *user) noexcept { delete static_cast<backend *>(user); };
		config.backend = PNY_BACKEND_OPS;
		config.ops = &ops;
		config.user = own.get();
		check(pny_registry_create(&config, &handle_));
		/* `release` has it from now on. */
		static_cast<void>(own.release());
	}

	registry(registry &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
	registry &operator=(registry &&other) noexcept
	{
		std::swap(handle_, other.handle_);
		return *this;
	}
	~registry()
	{
		if (handle_ != nullptr)
			pny_registry_destroy(handle_);
	}

	/* Destroys it now; fails while leases are held, and changes nothing then. */
	void destroy()
	{
		if (handle_ != nullptr)
			check(pny_registry_destroy(handle_));
		handle_ = nullptr;
	}

	pny_registry handle() const noexcept { return handle_; }

	lease get(const void *address, std::size_t length, pny_access access = PNY_LOCAL_WRITE) const
	{
		lease got;
		check(pny_get(handle_, address, length, access, &got.held_));
		return got;
	}
	/* Of all elements of a vector, an array, a string. */
	template <typename Container, typename = decltype(std::data(std::declval<const Container &>()))>
	lease get(const Container &memory, pny_access access = PNY_LOCAL_WRITE) const
	{
		return get(std::data(memory), std::size(memory) * sizeof(*std::data(memory)), access);
	}

	/* The key of a cached registration, not held; nothing where there is none. */
	std::optional<pny_key> lookup(const void *address, std::size_t length,
				      pny_access access = PNY_LOCAL_WRITE) const
	{
		pny_key key{};
		const pny_status status = pny_lookup(handle_, address, length, access, &key);

		if (status == PNY_ERR_NOT_FOUND)
			return std::nullopt;
		check(status);
		return key;
	}

	void invalidate(const void *address, std::size_t length) const { check(pny_invalidate(handle_, address, length)); }
	void flush() const { check(pny_flush(handle_)); }

	pny_registry_counts stats() const
	{
		auto counts = sized<pny_registry_counts>();
		check(pny_registry_stats(handle_, &counts));
		return counts;
	}
	std::string explain(const void *address, std::size_t size, pny_access access = PNY_LOCAL_WRITE) const
	{
		return detail::text([&](char *text, std::size_t capacity, std::size_t *length) {
			return pny_explain(handle_, address, size, access, text, capacity, length);
		});
	}

private:
	template <typename Call> static int guarded(Call call) noexcept
	{
		try {
			return call();
		} catch (const std::bad_alloc &) {
			return ENOMEM;
		} catch (...) {
			return EIO;
		}
	}

	pny_registry handle_ = nullptr;
};

class pool;

/*
 * A stream that device memory is allocated on. It goes before its pool, whose destructor
 * leaves a pool alone that has streams or blocks.
 */
class stream {
public:
	/* See pny_stream_create. */
	explicit stream(const pool &of, void *native = nullptr);
	stream(stream &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
	stream &operator=(stream &&other) noexcept
	{
		std::swap(handle_, other.handle_);
		return *this;
	}
	~stream()
	{
		if (handle_ != nullptr)
			pny_stream_destroy(handle_);
	}

	void destroy()
	{
		if (handle_ != nullptr)
			check(pny_stream_destroy(std::exchange(handle_, nullptr)));
	}

	pny_stream handle() const noexcept { return handle_; }

private:
	pny_stream handle_ = nullptr;
};

/* A block of a pool, which it must not outlive. */
class block {
public:
	block() noexcept = default;
	block(block &&other) noexcept
		: pool_(std::exchange(other.pool_, nullptr)), data_(std::exchange(other.data_, nullptr)),
		  size_(std::exchange(other.size_, 0))
	{
	}
	block &operator=(block &&other) noexcept
	{
		std::swap(pool_, other.pool_);
		std::swap(data_, other.data_);
		std::swap(size_, other.size_);
		return *this;
	}
	~block()
	{
		if (data_ != nullptr)
			pny_pool_free(pool_, data_);
	}

	explicit operator bool() const noexcept { return data_ != nullptr; }
	/* Bytes asked for. Of a device pool the address is the device's. */
	void *data() const noexcept { return data_; }
	std::size_t size() const noexcept { return size_; }

	/* Its key, and where it lies in its slab. */
	pny_block_place place() const
	{
		auto found = sized<pny_block_place>();
		check(pny_pool_find(pool_, data_, &found));
		return found;
	}

	/* Another stream of its pool uses it. */
	void record_use(const stream &by) { check(pny_pool_record_use(pool_, data_, by.handle())); }

	/* Gives it up: now, when the stream has passed, or when `passed` says so. */
	void free()
	{
		if (data_ != nullptr)
			check(pny_pool_free(pool_, data_));
		data_ = nullptr;
	}
	void free_after(const stream &passes)
	{
		check(pny_pool_free_after(pool_, data_, passes.handle()));
		data_ = nullptr;
	}
	void defer_until(int (*passed)(void *user), void *user)
	{
		check(pny_pool_defer_until(pool_, data_, passed, user));
		data_ = nullptr;
	}

private:
	friend class pool;
	block(pny_pool of, void *data, std::size_t size) noexcept : pool_(of), data_(data), size_(size) {}

	pny_pool pool_ = nullptr;
	void *data_ = nullptr;
	std::size_t size_ = 0;
};

/* A pool. Its registry goes after it. */
class pool {
public:
	explicit pool(const pny_pool_config &config) { check(pny_pool_create(&config, &handle_)); }
	pool(pool &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
	pool &operator=(pool &&other) noexcept
	{
		std::swap(handle_, other.handle_);
		return *this;
	}
	~pool()
	{
		if (handle_ != nullptr)
			pny_pool_destroy(handle_);
	}

	/* Destroys it now; fails while blocks are in use, and it stays then. */
	void destroy()
	{
		if (handle_ != nullptr)
			check(pny_pool_destroy(handle_));
		handle_ = nullptr;
	}

	pny_pool handle() const noexcept { return handle_; }

	block alloc(std::size_t bytes) const { return of(bytes, nullptr); }
	block alloc(std::size_t bytes, const stream &on) const { return of(bytes, on.handle()); }
	block alloc_aligned(std::size_t bytes, std::size_t align) const { return aligned(bytes, align, nullptr); }
	block alloc_aligned(std::size_t bytes, std::size_t align, const stream &on) const
	{
		return aligned(bytes, align, on.handle());
	}
	std::vector<block> alloc_batch(const std::vector<std::size_t> &sizes) const { return batch(sizes, nullptr); }
	std::vector<block> alloc_batch(const std::vector<std::size_t> &sizes, const stream &on) const
	{
		return batch(sizes, on.handle());
	}

	void warmup(std::size_t bytes, std::size_t count) const { check(pny_pool_warmup(handle_, bytes, count, nullptr)); }
	void warmup(std::size_t bytes, std::size_t count, const stream &on) const
	{
		check(pny_pool_warmup(handle_, bytes, count, on.handle()));
	}
	/* Bytes given back. */
	std::size_t trim() const
	{
		std::size_t released = 0;
		check(pny_pool_trim(handle_, &released));
		return released;
	}
	pny_pool_counts stats() const
	{
		auto counts = sized<pny_pool_counts>();
		check(pny_pool_stats(handle_, &counts));
		return counts;
	}

private:
	block of(std::size_t bytes, pny_stream on) const
	{
		void *data = nullptr;
		check(pny_pool_alloc(handle_, bytes, on, &data));
		return block(handle_, data, bytes);
	}
	block aligned(std::size_t bytes, std::size_t align, pny_stream on) const
	{
		void *data = nullptr;
		check(pny_pool_alloc_aligned(handle_, bytes, align, on, &data));
		return block(handle_, data, bytes);
	}
	std::vector<block> batch(const std::vector<std::size_t> &sizes, pny_stream on) const
	{
		std::vector<void *> data(sizes.size());
		std::vector<block> blocks;

		/* Before what it cannot fail after. */
		blocks.reserve(sizes.size());
		check(pny_pool_alloc_batch(handle_, sizes.data(), sizes.size(), on, data.data()));
		for (std::size_t index = 0; index < sizes.size(); index++)
			blocks.push_back(block(handle_, data[index], sizes[index]));
		return blocks;
	}

	pny_pool handle_ = nullptr;
};

inline stream::stream(const pool &of, void *native)
{
	check(pny_stream_create(of.handle(), native, &handle_));
}

/*
 * The pool of a device that PyTorch, CuPy and RMM allocate from, where they were told to:
 * the functions that they are given, pny_torch_malloc and its kin, are not called from C++.
 */
class plugged {
public:
	explicit plugged(int device) noexcept : device_(device) {}

	/* See pny_plug_stats. */
	pny_pool_counts stats() const
	{
		auto counts = sized<pny_pool_counts>();
		check(pny_plug_stats(device_, &counts));
		return counts;
	}
	/* Bytes given back. */
	std::size_t trim() const
	{
		std::size_t released = 0;
		check(pny_plug_trim(device_, &released));
		return released;
	}
	/* See pny_plug_retire. */
	void retire(void *native) const { check(pny_plug_retire(device_, native)); }

private:
	int device_;
};

/* The block of device memory that an address lies in, of whichever pool; see pny_device_find. */
inline pny_block_place find_on_device(const void *address)
{
	auto found = sized<pny_block_place>();
	check(pny_device_find(address, &found));
	return found;
}

} /* namespace pinyard */

#endif
