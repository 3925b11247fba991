#!/usr/bin/env python3
"""Records what `examples/python/torch_train.py` allocates, on a CPU: `record.py [steps]`.

Wants PyTorch (torch_train.txt: 2.15, 12 steps). Attention is computed by products of matrices,
as on a GPU with deterministic algorithms. Prints one word per operation, in the order of time: the
bytes of a block of 64 KiB or more, or -N where the block with number N, from 0, is freed.
"""
import json
import runpy
import sys
import tempfile
import textwrap
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

LEAST = 64 << 10


def train(example, steps):
    """The example's steps, with batches in ordinary memory."""
    torch.Tensor.pin_memory = lambda tensor: tensor
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    model = example["Model"]()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, foreach=True)
    for step in range(steps):
        tokens = example["batch"](step)
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    path = Path(__file__).resolve().parents[3] / "examples/python/torch_train.py"
    example = runpy.run_path(str(path), run_name="torch_train")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded, sdpa_kernel(SDPBackend.MATH):
        train(example, steps)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        recorded.export_chrome_trace(file.name)
        events = json.load(open(file.name))["traceEvents"]
    events = [event for event in events if event.get("name") == "[memory]"]
    words, numbers, count = [], {}, 0
    for event in sorted(events, key=lambda event: event["ts"]):
        address, size = event["args"]["Addr"], event["args"]["Bytes"]
        if size >= LEAST:
            numbers[address] = count
            words.append(str(size))
            count += 1
        elif size < 0 and address in numbers:
            words.append(f"-{numbers.pop(address)}")
    print(textwrap.fill(" ".join(words), width=98, break_on_hyphens=False, break_long_words=False))


main()
