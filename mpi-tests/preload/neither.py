"""What the preload library must leave alone in a program that uses neither libfabric
nor UCX: its threads, and the first bytes of libc's functions."""
import ctypes
import mmap
import os

libc = ctypes.CDLL("libc.so.6", mode=os.RTLD_NOLOAD)
for name in ["munmap", "mmap", "mremap", "madvise", "brk", "syscall", "mprotect", "_dl_debug_state"]:
    try:
        at = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
    except AttributeError:
        continue
    print(name, ctypes.string_at(at, 16).hex())
memory = mmap.mmap(-1, 1 << 20)
memory.madvise(mmap.MADV_DONTNEED)
memory.close()
print("threads", len(os.listdir("/proc/self/task")))
