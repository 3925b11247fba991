#!/usr/bin/env python3
"""What PyTorch's allocator would reserve for a recorded file: `pytorch_rules.py torch_train.txt`.

The rules of `c10/cuda/CUDACachingAllocator.cpp` with their defaults, for one stream: lengths in
steps of 512 bytes; segments of 2 MiB for blocks to 1 MiB, of 20 MiB for those below 10 MiB, else
of whole 2 MiB; the shortest free block that suffices, split where more than 1 MiB (of small ones
512 bytes) is left; neighbours of one segment merge. Segments stay.
"""
import bisect
import sys

MIB = 1 << 20


class Pool:
    """Free and used blocks of one kind, by address: [length, is free]."""

    def __init__(self, least_rest):
        self.least_rest = least_rest
        self.free = []  # (length, address)
        self.blocks = {}
        self.above = {}  # neighbour above in the segment, by address
        self.below = {}

    def take(self, length):
        """The address of a block, or None."""
        at = bisect.bisect_left(self.free, (length, 0))
        if at == len(self.free):
            return None
        whole, address = self.free.pop(at)
        if whole - length >= self.least_rest:
            rest = address + length
            self.link(rest, self.above.pop(address, None))
            self.link(address, rest)
            self.blocks[rest] = [whole - length, True]
            bisect.insort(self.free, (whole - length, rest))
            whole = length
        self.blocks[address] = [whole, False]
        return address

    def link(self, low, high):
        if high is not None:
            self.above[low], self.below[high] = high, low

    def give(self, address):
        for low, high in ((address, self.above.get(address)), (self.below.get(address), address)):
            if low is None or high is None:
                continue
            neighbour = high if low == address else low
            if not self.blocks[neighbour][1]:
                continue
            self.free.remove((self.blocks[neighbour][0], neighbour))
            self.blocks[low][0] += self.blocks.pop(high)[0]
            self.below.pop(high)
            self.above.pop(low)
            self.link(low, self.above.pop(high, None))
            address = low
        self.blocks[address][1] = True
        bisect.insort(self.free, (self.blocks[address][0], address))

    def add(self, address, length):
        self.blocks[address] = [length, True]
        bisect.insort(self.free, (length, address))


def segment(length):
    if length <= MIB:
        return 2 * MIB
    return 20 * MIB if length < 10 * MIB else -(-length // (2 * MIB)) * 2 * MIB


def main():
    pools = {True: Pool(512), False: Pool(MIB + 1)}
    reserved = live = peak = 0
    given = []
    for word in open(sys.argv[1]).read().split():
        if word.startswith("-"):
            pool, address, wanted = given[int(word[1:])]
            pool.give(address)
            live -= wanted
            continue
        wanted = int(word)
        length = max(512, -(-wanted // 512) * 512)
        pool = pools[length <= MIB]
        address = pool.take(length)
        if address is None:
            # Segments are never neighbours.
            pool.add(reserved * 2, segment(length))
            reserved += segment(length)
            address = pool.take(length)
        given.append((pool, address, wanted))
        live += wanted
        peak = max(peak, live)
    print(f"in use {peak / MIB:.0f} MiB, reserved {reserved / MIB:.0f} MiB, ratio {reserved / peak:.3f}")


main()
