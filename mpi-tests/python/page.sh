#!/usr/bin/env bash
# The book's lines for PyTorch, with a library of one's own, and a tensor after them.
# Compiled everywhere; ends with status 77 where there is no PyTorch or no GPU.
#
#   mpi-tests/python/page.sh LIBRARY
set -euo pipefail
cd "$(dirname "$0")/../.."
lines=$(xtask/ci/block.sh docs/src/python.md torch "libpinyard.so.0=${1:?the path of libpinyard.so}")
exec timeout 100 python3 -B - "$lines" << 'END'
import ctypes
import sys

lines = compile(sys.argv[1], "docs/src/python.md", "exec")
try:
    import torch
except ImportError:
    sys.exit(77)
if not torch.cuda.is_available():
    print("no GPU")
    sys.exit(77)
exec(lines)
ones = torch.ones(1 << 20, device="cuda")
assert ones.sum().item() == 1 << 20
counts = (ctypes.c_uint64 * 11)(88)  # pny_pool_counts: its size, and the sixth is live_bytes
assert ctypes.CDLL(path).pny_plug_stats(0, counts) == 0
assert counts[5] >= ones.nbytes, list(counts)
print(f"the book's lines: {counts[5]} bytes of PyTorch's are pinyard's")
END
