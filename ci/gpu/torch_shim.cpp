// PyTorch's caching allocator behind plain C functions, for `pinyard bench pools`.
// Built on the machine that has PyTorch: see ci/gpu/pools.sh.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

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

extern "C" void *shim_alloc(size_t bytes, void *stream) {
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
extern "C" void shim_record_use(void *block, void *stream) {
    told("record a use", [=] {
        c10::Device device(c10::DeviceType::CUDA, 0);
        c10::DataPtr data(block, block, alloc::get()->raw_deleter(), device);
        alloc::recordStream(data, c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream), 0));
        data.release_context();
    });
}

extern "C" void shim_free(void *block) {
    told("free", [=] { alloc::raw_delete(block); });
}

extern "C" void shim_begin(double fraction) {
    alloc::emptyCache();
    alloc::setMemoryFraction(fraction, 0);
    alloc::resetPeakStats(0);
}

extern "C" uint64_t shim_peak_reserved() { return alloc::getDeviceStats(0).reserved_bytes[0].peak; }
