// CUB's caching allocator and Thrust's disjoint pool over cudaMalloc behind plain C
// functions, for `pinyard bench pools`. Built where the GPU is: see xtask/ci/gpu/pools.sh.
#include "shim.h"
#include "upstream.h"
#include <cuda_runtime.h>
#include <new>
#include <optional>

static Upstream cub_memory, thrust_memory;

// CUB calls cudaMalloc by its name and has no limit; it frees what it keeps when it fails.
static cudaError_t cub_malloc(void **block, size_t bytes) { return cub_memory.allocate(block, bytes); }
static cudaError_t cub_free(void *block) { return cub_memory.release(block); }
#define cudaMalloc cub_malloc
#define cudaFree cub_free
#include <cub/util_allocator.cuh>
#undef cudaMalloc
#undef cudaFree
#include <cub/version.cuh>
#include <thrust/mr/disjoint_pool.h>
#include <thrust/mr/memory_resource.h>
#include <thrust/mr/new.h>

#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)
static const char *const version = "(CCCL " TEXT(CUB_VERSION) ")";

// Bins of powers of 2 from 256 B to 16 GiB, and no limit to what is kept: its own default is
// powers of 8 to 2 MiB, and 6 MB.
static std::optional<cub::CachingDeviceAllocator> cub_pool;

static void *cub_alloc(size_t bytes, void *stream) {
    void *block = nullptr;
    if (cub_pool->DeviceAllocate(&block, bytes, static_cast<cudaStream_t>(stream)) != cudaSuccess) {
        cudaGetLastError();
        return nullptr;
    }
    return block;
}

static void cub_release(void *block, size_t, void *) { must("DeviceFree", cub_pool->DeviceFree(block)); }

static void cub_end() { cub_pool.reset(); }

static void cub_begin(uint64_t limit, uint64_t) {
    cub_end();
    cub_memory.begin(limit);
    cub_pool.emplace(2, 8, 34, SIZE_MAX);
}

struct Limited final : thrust::mr::memory_resource<> {
    void *do_allocate(size_t bytes, size_t) override {
        void *block = nullptr;
        if (thrust_memory.allocate(&block, bytes) != cudaSuccess) throw std::bad_alloc();
        return block;
    }
    void do_deallocate(void *block, size_t, size_t) override { must("cudaFree", thrust_memory.release(block)); }
};

using Pool = thrust::mr::disjoint_unsynchronized_pool_resource<Limited, thrust::mr::new_delete_resource>;
static Limited upstream;
static thrust::mr::new_delete_resource bookkeeper;
static std::optional<Pool> thrust_pool;

static void *thrust_alloc(size_t bytes, void *) {
    try {
        return thrust_pool->do_allocate(bytes, 256);
    } catch (const std::bad_alloc &) {
        return nullptr;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "Thrust could not allocate: %s\n", error.what());
        return nullptr;
    }
}

static void thrust_release(void *block, size_t bytes, void *) { thrust_pool->do_deallocate(block, bytes, 256); }

static void thrust_end() { thrust_pool.reset(); }

static void thrust_begin(uint64_t limit, uint64_t) {
    thrust_end();
    thrust_memory.begin(limit);
    thrust_pool.emplace(&upstream, &bookkeeper, Pool::get_default_options());
}

extern "C" const Contender *shim_contender(uint64_t number) {
    static const Contender all[] = {
        {"CUB", version, 0, cub_alloc, nullptr, cub_release, [](void *, void *stream, void *other) { wait_for(stream, other); },
         cub_begin, [] { return cub_memory.peak(); }, cub_end},
        // It knows of no streams.
        {"CCCL disjoint pool", version, 1, thrust_alloc, nullptr, thrust_release, [](void *, void *, void *) {}, thrust_begin,
         [] { return thrust_memory.peak(); }, thrust_end},
    };
    return number < 2 ? &all[number] : nullptr;
}
