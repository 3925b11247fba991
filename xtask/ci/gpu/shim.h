// What a shim over an allocator gives to `pinyard bench pools`, which has the same in
// benches/src/bench/pools/shim.rs. No exception may leave a function.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

struct Contender {
    const char *name;
    const char *version;
    // Streams, and threads, that it serves at once: 0 for any number.
    uint64_t streams;
    // A block for `stream`, or null; what it is known by.
    void *(*alloc)(size_t bytes, void *stream);
    // Where it lies; null where that is what it is known by.
    void *(*address)(void *block);
    // `bytes` and `stream` as they were given to `alloc`.
    void (*free)(void *block, size_t bytes, void *stream);
    // `other` uses the block of `stream` as well, with all the work that it has now.
    void (*record_use)(void *block, void *stream, void *other);
    // Nothing is kept from before; `limit` bytes of the device's `total` at most, or UINT64_MAX.
    void (*begin)(uint64_t limit, uint64_t total);
    // The most bytes that were taken from the driver since `begin`.
    uint64_t (*peak_reserved)();
    // All that is kept goes back.
    void (*end)();
};

// The contender with this number, from 0 on; null beyond the last.
const Contender *shim_contender(uint64_t number);
}
