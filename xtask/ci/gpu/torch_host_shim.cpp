// PyTorch's caching allocator of pinned host memory behind plain C functions, for
// `pinyard bench pools.copies`. Built on the machine that has PyTorch, whose version is
// PYTORCH_VERSION: see xtask/ci/gpu/pools.sh.
#include "shim.h"
#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cstdio>
#include <cstdlib>

// Exported by c10_cuda for the part of PyTorch that is not initialised here, without a header.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*has)(c10::DeviceIndex));
}

// What is asked before an event is recorded. The context is the driver's, and there.
static const bool ready = [] {
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
    return true;
}();

static at::HostAllocator *host() {
    static at::HostAllocator *const allocator = at::getHostAllocator(at::kCUDA);
    return allocator;
}

// No exception may reach Rust.
template <class Call> static void told(const char *what, Call call) {
    try {
        call();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "PyTorch could not %s: %s\n", what, error.what());
        std::abort();
    }
}

// A block is known by what owns it.
static void *allocate(size_t bytes, void *) {
    try {
        return new at::DataPtr(host()->allocate(bytes));
    } catch (const std::exception &error) {
        std::fprintf(stderr, "PyTorch could not allocate: %s\n", error.what());
        return nullptr;
    }
}

static void *address(void *block) { return static_cast<at::DataPtr *>(block)->get(); }

static void release(void *block, size_t, void *) {
    told("free", [=] { delete static_cast<at::DataPtr *>(block); });
}

static void record_use(void *block, void *, void *stream) {
    told("record a use", [=] {
        auto *data = static_cast<at::DataPtr *>(block);
        auto on = c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream), 0);
        host()->record_event(data->get(), data->get_context(), on.unwrap());
    });
}

static void end() {
    told("empty its cache", [] { host()->empty_cache(); });
}

static void begin(uint64_t, uint64_t) {
    end();
    told("begin", [] { host()->reset_peak_stats(); });
}

extern "C" const Contender *shim_contender(uint64_t number) {
    static const Contender torch = {
        "PyTorch", PYTORCH_VERSION, 0,     allocate, address, release, record_use,
        begin,     [] { return uint64_t(host()->get_stats().allocated_bytes.peak); }, end,
    };
    return number == 0 ? &torch : nullptr;
}
