#!/usr/bin/env python3
"""RAPIDS (RMM) on pinyard's pool, by RMM's callback resource.

    rmm_callback.py [libpinyard.so.0]

Ends with status 77 where there is no RMM or no GPU.
"""
import ctypes
import sys

try:
    import rmm
    from rmm.pylibrmm.stream import Stream
except ImportError:
    sys.exit(77)

path = sys.argv[1] if len(sys.argv) > 1 else "libpinyard.so.0"
library = ctypes.CDLL(path)
library.pny_torch_malloc.restype = ctypes.c_void_p
library.pny_torch_malloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
library.pny_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
library.pny_torch_free.restype = None
device = 0


def handle(stream):
    """The CUstream of RMM's stream, by CUDA's stream protocol. Without it the pool would not
    know in whose order a block is used, and would hand it out too early."""
    if not hasattr(stream, "__cuda_stream__"):
        raise RuntimeError(f"{type(stream).__name__} has no __cuda_stream__: a newer RMM has it")
    return stream.__cuda_stream__()[1]


def allocate(size, stream):
    block = library.pny_torch_malloc(size, device, handle(stream))
    if not block and size:
        raise MemoryError(f"{size} bytes of device memory: see stderr")
    return block or 0


def deallocate(block, size, stream):
    library.pny_torch_free(block, size, device, handle(stream))


rmm.mr.set_current_device_resource(rmm.mr.CallbackMemoryResource(allocate, deallocate))
buffers = [rmm.DeviceBuffer.to_device(bytes([number]) * (1000 * number)) for number in range(1, 100)]
for number, buffer in enumerate(buffers, 1):
    assert buffer.tobytes() == bytes([number]) * (1000 * number), number
# Of a stream of their own: freed there, and handed out again in that stream's order.
side = Stream()
for number in range(1, 100):
    wanted = bytes([number]) * (1 << 20)
    buffer = rmm.DeviceBuffer.to_device(wanted, stream=side)
    assert buffer.tobytes(stream=side) == wanted, number
print("99 buffers from pinyard's pool, and as many of another stream: contents agree")
