#!/usr/bin/env bash
# The book's lines for PyTorch, with a library of one's own, and a tensor after them.
# Compiled everywhere; ends with status 77 where there is no PyTorch or no GPU.
#
#   mpi-tests/python/page.sh LIBRARY
set -euo pipefail
cd "$(dirname "$0")/../.."
lines=$(ci/block.sh docs/src/python.md torch "libpinyard.so.0=${1:?the path of libpinyard.so}")
exec timeout 100 python3 -B - "$lines" << 'END'
import sys

lines = compile(sys.argv[1], "docs/src/python.md", "exec")
sys.path.insert(0, "examples/python")
from torch_train import Counts  # ends here where there is no PyTorch
import torch

if not torch.cuda.is_available():
    print("no GPU")
    sys.exit(77)
exec(lines)
ones = torch.ones(1 << 20, device="cuda")
assert ones.sum().item() == 1 << 20
counts = Counts(size=ctypes.sizeof(Counts))
assert ctypes.CDLL(path).pny_plug_stats(0, ctypes.byref(counts)) == 0
assert counts.live_bytes >= ones.nbytes, counts.live_bytes
print(f"the book's lines: {counts.live_bytes} bytes of PyTorch's are pinyard's")
END
