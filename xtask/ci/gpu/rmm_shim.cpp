// RMM's pool over cudaMalloc behind plain C functions, for `pinyard bench pools`. It begins
// empty and grows by its own rule. Built where the GPU is: see xtask/ci/gpu/pools.sh.
#include "shim.h"
#include "upstream.h"
#include <memory>
#include <new>
#include <optional>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/version_config.hpp>

// What its pool takes memory from; a resource is copied, and this is not.
static Upstream memory;

struct Limited {
    void *allocate(cuda::stream_ref, size_t bytes, size_t = 256) { return allocate_sync(bytes); }
    void deallocate(cuda::stream_ref, void *block, size_t bytes, size_t = 256) noexcept {
        deallocate_sync(block, bytes);
    }
    void *allocate_sync(size_t bytes, size_t = 256) {
        void *block = nullptr;
        if (memory.allocate(&block, bytes) != cudaSuccess) throw std::bad_alloc();
        return block;
    }
    void deallocate_sync(void *block, size_t, size_t = 256) noexcept {
        must("cudaFree", memory.release(block));
    }
    bool operator==(const Limited &) const noexcept { return true; }
    bool operator!=(const Limited &) const noexcept { return false; }
    friend void get_property(const Limited &, cuda::mr::device_accessible) noexcept {}
};

#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)

static std::optional<rmm::mr::pool_memory_resource> pool;

static cuda::stream_ref of(void *stream) { return cuda::stream_ref{static_cast<cudaStream_t>(stream)}; }

static void *alloc(size_t bytes, void *stream) {
    try {
        return pool->allocate(of(stream), bytes, 256);
    } catch (const std::bad_alloc &) {
        return nullptr;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "RMM could not allocate: %s\n", error.what());
        return nullptr;
    }
}

static void release(void *block, size_t bytes, void *stream) { pool->deallocate(of(stream), block, bytes, 256); }

static void end() { pool.reset(); }

static void begin(uint64_t limit, uint64_t) {
    end();
    memory.begin(limit);
    try {
        std::optional<size_t> most;
        if (limit != UINT64_MAX) most = limit / 256 * 256;
        pool.emplace(Limited{}, size_t{0}, most);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "RMM could not make a pool: %s\n", error.what());
        std::abort();
    }
}

extern "C" const Contender *shim_contender(uint64_t number) {
    static const Contender rmm = {
        "RMM pool",
        TEXT(RMM_VERSION_MAJOR) "." TEXT(RMM_VERSION_MINOR) "." TEXT(RMM_VERSION_PATCH),
        0,
        alloc,
        nullptr,
        release,
        [](void *, void *stream, void *other) { wait_for(stream, other); },
        begin,
        [] { return memory.peak(); },
        end,
    };
    return number == 0 ? &rmm : nullptr;
}
