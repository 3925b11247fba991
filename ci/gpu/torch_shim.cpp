// PyTorch's caching allocator behind plain C functions, for `pinyard bench pools`.
// Built on the machine that has PyTorch: see ci/gpu/pools.sh.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cstdint>

namespace alloc = c10::cuda::CUDACachingAllocator;

static bool ready = [] {
    alloc::init(c10::cuda::device_count());
    return true;
}();

extern "C" void *shim_alloc(size_t bytes, void *stream) {
    try {
        return alloc::raw_alloc_with_stream(bytes, static_cast<cudaStream_t>(stream));
    } catch (const std::exception &) {
        return nullptr;
    }
}

extern "C" void shim_free(void *block) { alloc::raw_delete(block); }

extern "C" void shim_begin(double fraction) {
    alloc::emptyCache();
    alloc::setMemoryFraction(fraction, 0);
    alloc::resetPeakStats(0);
}

extern "C" uint64_t shim_peak_reserved() { return alloc::getDeviceStats(0).reserved_bytes[0].peak; }
