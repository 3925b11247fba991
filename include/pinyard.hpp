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

	/* pny_finalize: fails while leases or blocks are held, and changes nothing then. */
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
 * destroyed by the destructor, and stays until pny_finalize.
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

} /* namespace pinyard */

#endif
