// PyTorch's caching allocator behind plain C functions, for `pinyard bench pools`.
// Built on the machine that has PyTorch, whose version is PYTORCH_VERSION: see xtask/ci/gpu/pools.sh.
#include "shim.h"
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace alloc = c10::cuda::CUDACachingAllocator;

// Exported by c10_cuda for the part of PyTorch that is not loaded here, without a header.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*has)(c10::DeviceIndex));
}

static bool ready = [] {
    alloc::init(c10::cuda::device_count());
    // What is asked before an event is recorded. The context is the driver's, and there.
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
    return true;
}();

// No exception may reach Rust.
template <class Call> static void told(const char *what, Call call) {
    try {
        call();
    } catch (const c10::Error &error) {
        std::fprintf(stderr, "PyTorch could not %s: %s\n", what, error.what_without_backtrace());
        std::abort();
    }
}

static void *allocate(size_t bytes, void *stream) {
    try {
        return alloc::raw_alloc_with_stream(bytes, static_cast<cudaStream_t>(stream));
    } catch (const c10::OutOfMemoryError &) {
        return nullptr;
    } catch (const c10::Error &error) {
        std::fprintf(stderr, "PyTorch could not allocate: %s\n", error.what_without_backtrace());
        return nullptr;
    }
}

// Through what tensors do it with, without their count of references.
static void record_use(void *block, void *, void *stream) {
    told("record a use", [=] {
        c10::Device device(c10::DeviceType::CUDA, 0);
        c10::DataPtr data(block, block, alloc::get()->raw_deleter(), device);
        alloc::recordStream(data, c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream), 0));
        data.release_context();
    });
}

static void release(void *block, size_t, void *) {
    told("free", [=] { alloc::raw_delete(block); });
}

static void begin(uint64_t limit, uint64_t total) {
    told("begin", [=] {
        alloc::emptyCache();
        alloc::setMemoryFraction(limit < total ? double(limit) / double(total) : 1.0, 0);
        alloc::resetPeakStats(0);
    });
}

static uint64_t peak_reserved() { return alloc::getDeviceStats(0).reserved_bytes[0].peak; }

extern "C" const Contender *shim_contender(uint64_t number) {
    static const char *settings = std::getenv("PYTORCH_ALLOC_CONF");
    static const bool expandable = settings && std::strstr(settings, "expandable_segments:True");
    static const Contender torch = {
        expandable ? "PyTorch, expandable segments" : "PyTorch",
        PYTORCH_VERSION,
        0,
        allocate,
        nullptr,
        release,
        record_use,
        begin,
        peak_reserved,
        [] { begin(UINT64_MAX, 0); },
    };
    return number == 0 ? &torch : nullptr;
}
