#!/usr/bin/env python3
"""CuPy's arrays from pinyard's pool.

    cupy_pool.py [libpinyard.so.0]

CuPy does not tell an allocator for which stream it allocates: the allocator's parameter
is the stream in whose order the memory is used, here a stream of the program's own. Ends
with status 77 where there is no CuPy or no GPU.
"""
import ctypes
import sys

try:
    import cupy
except ImportError:
    sys.exit(77)
try:
    cupy.cuda.runtime.getDeviceCount()
except cupy.cuda.runtime.CUDARuntimeError as error:
    print(error, file=sys.stderr)
    sys.exit(77)

path = sys.argv[1] if len(sys.argv) > 1 else "libpinyard.so.0"
library = ctypes.CDLL(path)
address = lambda function: ctypes.cast(function, ctypes.c_void_p).value
stream = cupy.cuda.Stream(non_blocking=True)
allocator = cupy.cuda.memory.CFunctionAllocator(
    stream.ptr, address(library.pny_cupy_malloc), address(library.pny_cupy_free), library
)
cupy.cuda.set_allocator(allocator.malloc)
with stream:
    for round in range(200):
        length = 1000 + 7919 * round % 100_000
        a = cupy.arange(length, dtype=cupy.float64)
        b = cupy.full(length, round, dtype=cupy.float64)
        assert float((a + b).sum()) == length * (length - 1) / 2 + round * length, (round, length)
    stream.synchronize()
    del a, b
library.pny_plug_retire(0, ctypes.c_void_p(stream.ptr))
print("200 rounds of arrays from pinyard's pool: sums agree")
