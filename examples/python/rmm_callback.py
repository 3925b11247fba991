#!/usr/bin/env python3
"""RAPIDS (RMM) on pinyard's pool, by RMM's callback resource.

    rmm_callback.py [libpinyard.so.0]

Ends with status 77 where there is no RMM or no GPU.
"""
import ctypes
import sys

try:
    import rmm
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
    """The CUstream of RMM's stream: newer ones speak CUDA's stream protocol."""
    return stream.__cuda_stream__()[1] if hasattr(stream, "__cuda_stream__") else 0


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
print("99 buffers from pinyard's pool: contents agree")
