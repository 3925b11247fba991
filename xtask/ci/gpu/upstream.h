// cudaMalloc with a limit, for allocators that take their memory from it, and what a user
// of such an allocator does when a second stream uses a block.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <mutex>
#include <unordered_map>

inline void must(const char *call, cudaError_t error) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
    std::abort();
}

class Upstream {
    std::mutex lock;
    std::unordered_map<void *, size_t> held;
    uint64_t limit = UINT64_MAX, sum = 0, most = 0;

  public:
    void begin(uint64_t bytes) {
        std::lock_guard guard(lock);
        limit = bytes;
        most = sum;
    }

    uint64_t peak() {
        std::lock_guard guard(lock);
        return most;
    }

    cudaError_t allocate(void **block, size_t bytes) {
        std::lock_guard guard(lock);
        if (bytes > limit - std::min(limit, sum)) return cudaErrorMemoryAllocation;
        cudaError_t error = cudaMalloc(block, bytes);
        if (error != cudaSuccess) {
            // The next call would report it again.
            cudaGetLastError();
            return error;
        }
        held[*block] = bytes;
        sum += bytes;
        most = std::max(most, sum);
        return cudaSuccess;
    }

    cudaError_t release(void *block) {
        std::lock_guard guard(lock);
        if (auto found = held.find(block); found != held.end()) {
            sum -= found->second;
            held.erase(found);
        }
        return cudaFree(block);
    }
};

// The allocator knows of one stream: that one waits for the other, by an event, and the
// block is freed in its order.
inline void wait_for(void *stream, void *other) {
    static thread_local cudaEvent_t event = [] {
        cudaEvent_t created;
        must("cudaEventCreate", cudaEventCreateWithFlags(&created, cudaEventDisableTiming));
        return created;
    }();
    must("cudaEventRecord", cudaEventRecord(event, static_cast<cudaStream_t>(other)));
    must("cudaStreamWaitEvent", cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0));
}
