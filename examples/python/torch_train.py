#!/usr/bin/env python3
"""Trains a small transformer in PyTorch with its own allocator or with pinyard's pool.

    torch_train.py torch|pinyard [--library libpinyard.so.0] [--steps 200] [--json]

The same seed gives the same batches, whose lengths vary from step to step, and the same
losses bit for bit: an allocator that handed out memory too early would change them.
Prints the last loss, a digest of all of them, the time without the first ten steps, and
the device memory that was reserved at most. Ends with status 77 where there is no PyTorch
or no GPU.
"""
import argparse
import ctypes
import hashlib
import json
import os
import struct
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # same sums in the same order
try:
    import torch
    from torch import nn
except ImportError:
    sys.exit(77)

VOCABULARY, WIDTH, HEADS, LAYERS, BATCH, LONGEST = 512, 256, 8, 4, 32, 192


class Counts(ctypes.Structure):
    """pny_pool_counts of pinyard.h."""

    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.c_uint64)
        for name in (
            "slabs slabs_made reserved_bytes peak_reserved_bytes live_bytes live_blocks"
            " waiting_blocks free_bytes allocations frees"
        ).split()
    ]


def use_pinyard(path):
    """Makes pinyard's pool PyTorch's allocator. Before anything is allocated."""
    memory = torch.cuda.memory
    allocator = memory.CUDAPluggableAllocator(path, "pny_torch_malloc", "pny_torch_free")
    library = ctypes.CDLL(path)
    # Tensor.record_stream: a tensor that another stream uses is not handed out too early.
    record = ctypes.cast(library.pny_torch_record_stream, ctypes.c_void_p).value
    allocator.allocator().set_record_stream_fn(record)
    memory.change_current_allocator(allocator)
    return library


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LONGEST, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        x = self.tokens(tokens) + self.places(torch.arange(length, device=tokens.device))
        return self.out(self.layers(x, mask=mask, is_causal=True))


def batch(step):
    """Sequences of a fixed rule, made on the host and copied beside the work."""
    length = 64 + 32 * (step * 7 % 5)
    start = torch.randint(VOCABULARY, (BATCH, 1))
    steps = torch.arange(length + 1)
    tokens = (start + 3 * steps + steps * steps) % VOCABULARY
    return tokens.pin_memory()


def main():
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parse.add_argument("allocator", choices=["torch", "pinyard"])
    parse.add_argument("--library", default="libpinyard.so.0")
    parse.add_argument("--steps", type=int, default=200)
    parse.add_argument("--json", action="store_true")
    options = parse.parse_args()
    if not torch.cuda.is_available():
        print("no GPU", file=sys.stderr)
        sys.exit(77)
    library = use_pinyard(options.library) if options.allocator == "pinyard" else None
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    copying = torch.cuda.Stream()
    losses, began = [], None
    for step in range(options.steps):
        if step == 10:
            torch.cuda.synchronize()
            began = time.perf_counter()
        with torch.cuda.stream(copying):
            tokens = batch(step).cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(copying)
        tokens.record_stream(torch.cuda.current_stream())
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began if began else 0.0
    losses = [loss.item() for loss in losses]
    if library:
        counts = Counts(size=ctypes.sizeof(Counts))
        assert library.pny_plug_stats(0, ctypes.byref(counts)) == 0
        reserved, allocations = counts.peak_reserved_bytes, counts.allocations
    else:
        reserved = torch.cuda.max_memory_reserved()
        allocations = torch.cuda.memory_stats()["allocation.all.allocated"]
    digest = hashlib.sha256(struct.pack(f"{len(losses)}f", *losses)).hexdigest()[:16]
    result = {
        "allocator": options.allocator,
        "steps": options.steps,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "losses": digest,
        "seconds": round(seconds, 3),
        "peak_reserved_bytes": reserved,
        "allocations": allocations,
    }
    print(json.dumps(result) if options.json else "\n".join(f"{k:20} {v}" for k, v in result.items()))


if __name__ == "__main__":
    main()
