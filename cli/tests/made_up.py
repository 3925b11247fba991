#!/usr/bin/env python3
"""Writes traces as processes of a job do: EVENTS events in FOLDER, of RANKS ranks."""
import json, os, random, sys

def trace(folder, rank, ranks, events, hostile=False):
    random.seed(rank)
    evil = "</script><img src=x onerror=alert(1)>\"'&<b>"
    host = evil if hostile else f"node{rank // 2 + 1}"
    process = {"host": host, "pid": 4000 + rank, "rank": rank, "program": evil if hostile else "solver", "wall_ns": 1_750_000_000_000_000_000 + rank * 1_300_000}
    backend, source = (evil, evil) if hostile else ("verbs", "device")
    lines = [{"format": "pinyard-trace", "version": 2, "process": process}]
    time, made, live, slab, regions = 0, 0, {}, [], []
    base = 0x7F0000000000
    def add(event, **more):
        nonlocal made
        made += 1
        lines.append({"t": time, "thread": 100 + rank, "event": event, **more})
    def grow():
        at = base + len(slab) * (80 << 20)
        slab.append(at)
        add("grow", bytes=64 << 20, address=at, of=2, name=source)
        add("register", bytes=64 << 20, address=at, took=random.randint(2_000_000, 9_000_000), of=1, name=backend)
    if events:
        grow()
    free = [list(range(0, 64 << 20, 256 << 10))]
    step = 0
    while made < events:
        step += 1
        phase = (made * 8 // events) % 4
        time += int(random.expovariate(1 / (900 if phase == 1 else 2600)))
        if live and (len(live) > 180 + 60 * phase or random.random() < 0.47):
            block = random.choice(list(live)[:40])
            stream, size, number, place = live.pop(block)
            free[number].append(place)
            # Its last use is another stream's: it is free when that has passed.
            if step % 9 == 0:
                add("fence", stream=stream, bytes=size, block_bytes=size, block=block, address=block, of=2, name=source)
                time += int(random.lognormvariate(10.5, 0.8))
            add("free", stream=stream, bytes=size, block_bytes=size, block=block, address=block, of=2, name=source)
        else:
            number = next((at for at, places in enumerate(free) if places), None)
            if number is None:
                grow()
                free.append(list(range(0, 64 << 20, 256 << 10)))
                number = len(free) - 1
            place = free[number].pop(random.randrange(min(8, len(free[number]))))
            size, stream = random.choice([4096, 65536, 200_000, 262144]), random.choice([7, 7, 7, 13, 21])
            address = slab[number] + place
            live[address] = (stream, size, number, place)
            add("alloc", stream=stream, bytes=size, block_bytes=size, block=address, address=address, of=2, name=source)
        if step % 61 == 0:
            took = int(random.lognormvariate(11.5 + 0.6 * (rank == 1), 0.9))
            at = 0x500000000000 + step * (2 << 20)
            add("register", bytes=1 << 20, address=at, took=took, of=1, name=backend)
            time += took
            regions.append(at)
        if step % 67 == 0 and regions:
            at = regions.pop(0)
            add("invalidate" if step % 3 else "evict", bytes=1 << 20, address=at, of=1, name=backend)
            add("deregister", bytes=1 << 20, address=at, took=int(random.lognormvariate(10.2, 0.5)), of=1, name=backend)
        if step % 211 == 0:
            took = int(random.lognormvariate(12.6, 0.7))
            add("mpi", bytes=random.choice([1024, 1 << 20, 32 << 20]), took=took, of=3, name=evil if hostile else random.choice(["bcast", "allreduce", "gather"]), path=evil if hostile else "ipc")
            time += took
        if step % 97 == 0 and live:
            block = next(iter(live))
            add("record_use", stream=13, block=block, address=block, of=2, name=source)
    # What comes in pairs may have gone beyond.
    del lines[events + 1:]
    add("end")
    path = os.path.join(folder, f"{'evil' if hostile else host}-r{rank}-{4000 + rank}.trace")
    with open(path, "w") as file:
        file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    return path

if __name__ == "__main__":
    folder, ranks, events = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.makedirs(folder, exist_ok=True)
    for rank in range(ranks):
        trace(folder, rank, ranks, events // ranks)
