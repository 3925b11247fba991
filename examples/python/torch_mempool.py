#!/usr/bin/env python3
"""A part of a PyTorch program's tensors from pinyard's pool, the rest from PyTorch's own.

    torch_mempool.py [libpinyard.so.0]

What is allocated inside `use_mem_pool` comes from slabs of pinyard's. Ends with status 77
where there is no PyTorch or no GPU.
"""
import sys

try:
    import torch
except ImportError:
    sys.exit(77)
if not torch.cuda.is_available():
    print("no GPU", file=sys.stderr)
    sys.exit(77)

path = sys.argv[1] if len(sys.argv) > 1 else "libpinyard.so.0"
allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "pny_torch_malloc", "pny_torch_free")
pool = torch.cuda.MemPool(allocator.allocator())
with torch.cuda.use_mem_pool(pool):
    inside = torch.arange(1 << 20, device="cuda")
outside = torch.ones(1 << 20, device="cuda", dtype=torch.int64)
total = int((inside * 2 + outside).sum())
assert total == (1 << 20) * (1 << 20), total
segments = pool.snapshot()
assert sum(segment["total_size"] for segment in segments) >= inside.nbytes, segments
print(f"{len(segments)} segments of the pool, {inside.nbytes} bytes of a tensor in them: sums agree")
