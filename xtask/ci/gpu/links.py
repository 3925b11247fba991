#!/usr/bin/env python3
"""What copies between GPUs of a node do, without MPI: one process, events between its streams.

How long a copy takes after the links were idle, and a broadcast from the first GPU to all:
  star    every GPU reads from the first
  chain   every GPU reads from the one before it, piece by piece; chain2 by two streams
  push    every GPU writes to the one behind it, piece by piece
  scag    each piece goes to one GPU, and from there to the others; scag2 by two streams
Microseconds (median of 7) and bytes received by one GPU in that time. One thread queues all
copies, which bounds short pieces. Needs PyTorch's CUDA runtime, and two GPUs at least.
"""
import ctypes
import glob
import os
import statistics
import time

import torch

MIB = 1 << 20
ROOM = 1 << 30
PIECES = 1100
DEVICE_TO_DEVICE, NON_BLOCKING, NO_TIMING = 3, 1, 2

where = os.path.dirname(torch.__file__)
found = glob.glob(where + "/../nvidia/*/lib/libcudart.so*") + glob.glob("/usr/local/cuda*/lib64/libcudart.so*")
cuda = ctypes.CDLL(sorted(found)[0])
gpus = torch.cuda.device_count()
current = -1


def call(status):
    if status != 0:
        raise RuntimeError(f"CUDA error {status}")


def use(gpu):
    global current
    if gpu != current:
        call(cuda.cudaSetDevice(gpu))
        current = gpu


def made(gpu, function, *arguments):
    use(gpu)
    handle = ctypes.c_void_p()
    call(function(ctypes.byref(handle), *arguments))
    return handle


for gpu in range(gpus):
    for peer in range(gpus):
        if peer != gpu:
            use(gpu)
            cuda.cudaDeviceEnablePeerAccess(peer, 0)
memory = [made(gpu, cuda.cudaMalloc, ctypes.c_size_t(ROOM)).value for gpu in range(gpus)]
streams = [[made(gpu, cuda.cudaStreamCreateWithFlags, NON_BLOCKING) for _ in range(3)] for gpu in range(gpus)]
events = [[made(gpu, cuda.cudaEventCreateWithFlags, NO_TIMING) for _ in range(PIECES)] for gpu in range(gpus)]


def copy(to, of, offset, bytes, stream, by):
    use(by)
    target, source = ctypes.c_void_p(memory[to] + offset), ctypes.c_void_p(memory[of] + offset)
    call(cuda.cudaMemcpyAsync(target, source, ctypes.c_size_t(bytes), DEVICE_TO_DEVICE, stream))


def mark(gpu, piece, stream):
    use(gpu)
    call(cuda.cudaEventRecord(events[gpu][piece], stream))


def after(gpu, other, piece, stream):
    use(gpu)
    call(cuda.cudaStreamWaitEvent(stream, events[other][piece], 0))


def synchronize():
    for gpu in range(gpus):
        use(gpu)
        call(cuda.cudaDeviceSynchronize())


def timed(work, bytes, before=lambda: None):
    times = []
    for _ in range(7):
        work()
        synchronize()
        before()
        began = time.perf_counter()
        work()
        synchronize()
        times.append(time.perf_counter() - began)
    median = statistics.median(times)
    return f"{median * 1e6:8.0f} us {bytes / median / 1e9:6.1f} GB/s"


def pieces(size, piece):
    return [(at, offset, min(piece, size - offset)) for at, offset in enumerate(range(0, size, piece))]


def star(size, _):
    for gpu in range(1, gpus):
        copy(gpu, 0, 0, size, streams[gpu][0], by=gpu)


def chain(size, piece, lanes=1):
    for at, offset, bytes in pieces(size, piece):
        for gpu in range(1, gpus):
            stream = streams[gpu][at % lanes]
            if gpu > 1:
                after(gpu, gpu - 1, at, stream)
            copy(gpu, gpu - 1, offset, bytes, stream, by=gpu)
            mark(gpu, at, stream)


def chain2(size, piece):
    chain(size, piece, lanes=2)


def push(size, piece):
    for at, offset, bytes in pieces(size, piece):
        for gpu in range(gpus - 1):
            stream = streams[gpu][0]
            if gpu > 0:
                after(gpu, gpu - 1, at, stream)
            copy(gpu + 1, gpu, offset, bytes, stream, by=gpu)
            mark(gpu, at, stream)


def scag(size, piece, lanes=1):
    for at, offset, bytes in pieces(size, piece):
        owner = 1 + at % (gpus - 1)
        copy(owner, 0, offset, bytes, streams[owner][0], by=owner)
        mark(owner, at, streams[owner][0])
        for gpu in range(1, gpus):
            if gpu != owner:
                stream = streams[gpu][1 + (owner + gpu) % lanes]
                after(gpu, owner, at, stream)
                copy(gpu, owner, offset, bytes, stream, by=gpu)


def scag2(size, piece):
    scag(size, piece, lanes=2)


print("one copy of MiB, 0 to 1, after the links were idle for ms")
for mib in (64, 256, 1024):
    for idle in (0, 0.2, 1, 5, 20, 100):
        one = timed(lambda: copy(1, 0, 0, mib * MIB, streams[1][0], by=1), mib * MIB, lambda: time.sleep(idle / 1e3))
        print(mib, idle, one)
if gpus > 2:
    for mib in (16, 64, 256, 1024):
        print("star", mib, timed(lambda: star(mib * MIB, 0), mib * MIB))
        for piece in (1, 2, 4, 8, 16, 32):
            if mib // piece <= 256 and 2 * piece <= mib:
                ways = [way.__name__ + timed(lambda: way(mib * MIB, piece * MIB), mib * MIB)
                        for way in (chain, chain2, push, scag, scag2)]
                print(mib, "piece", piece, *ways, flush=True)
