#!/usr/bin/env python3
"""The functions that PyTorch and CuPy call, called as they do, by ctypes: on the simulated
device, whose memory is the host's.

    plug.py libpinyard.so
"""
import ctypes
import os
import random
import subprocess
import sys
import threading

path = sys.argv[1]
library = ctypes.CDLL(path)
library.pny_torch_malloc.restype = ctypes.c_void_p
library.pny_torch_malloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
library.pny_torch_free.restype = None
library.pny_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
library.pny_torch_record_stream.restype = None
library.pny_torch_record_stream.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
library.pny_cupy_malloc.restype = ctypes.c_void_p
library.pny_cupy_malloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
library.pny_cupy_free.restype = None
library.pny_cupy_free.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
library.pny_plug_retire.argtypes = [ctypes.c_int, ctypes.c_void_p]
library.pny_last_error.restype = ctypes.c_char_p


class Counts(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.c_uint64)
        for name in (
            "slabs slabs_made reserved_bytes peak_reserved_bytes live_bytes live_blocks"
            " waiting_blocks free_bytes allocations frees"
        ).split()
    ]


def counts():
    now = Counts(size=ctypes.sizeof(Counts))
    assert library.pny_plug_stats(0, ctypes.byref(now)) == 0, last_error()
    return now


def last_error():
    return library.pny_last_error().decode()


def before_anything():
    assert library.pny_plug_stats(0, ctypes.byref(Counts(size=ctypes.sizeof(Counts)))) != 0
    assert "allocate there first" in last_error(), last_error()
    library.pny_torch_free(0x1000, 1, 0, None)
    assert "has no pool yet" in last_error(), last_error()
    library.pny_torch_record_stream(0x1000, None)
    assert "no device has a pool" in last_error(), last_error()


def contents_stay():
    """Blocks of every size, freed in random order, never overlap."""
    chance, live = random.Random(7), {}
    for turn in range(3000):
        if live and (len(live) > 60 or chance.random() < 0.4):
            block = chance.choice(list(live))
            size, byte = live.pop(block)
            assert ctypes.string_at(block, size) == bytes([byte]) * size, (turn, size)
            library.pny_torch_free(block, size, 0, None)
        else:
            size, byte = int(chance.lognormvariate(8, 2)) % (1 << 20) + 1, turn % 251
            block = library.pny_torch_malloc(size, 0, None)
            assert block, last_error()
            ctypes.memset(block, byte, size)
            assert block not in live
            live[block] = (size, byte)
    for block, (size, _) in live.items():
        library.pny_torch_free(block, size, 0, None)
    now = counts()
    assert now.live_blocks == 0 and now.allocations == now.frees > 1000, (now.live_blocks, now.frees)


def a_block_is_found_by_its_address():
    place = (ctypes.c_uint64 * 9)(72)  # pny_block_place: size, key, slab, block, offset
    find = lambda at: library.pny_device_find(ctypes.c_void_p(at), place)
    block = library.pny_torch_malloc(1000, 0, None)
    for at in (block, block + 999):
        assert find(at) == 0, last_error()
        assert list(place[1:4]) == [0, 0, 0] and place[6] == block and place[7] == 1000 and place[4] + place[8] == at
    assert find(block + 1000) == 16 and "in no block" in last_error()
    library.pny_torch_free(block, 1000, 0, None)
    assert find(block) == 16


def wrong_frees_are_refused():
    block = library.pny_torch_malloc(1000, 0, None)
    before = counts().frees
    for wrong in (block + 256, 0x1234):
        library.pny_torch_free(wrong, 1000, 0, None)
        assert hex(wrong) in last_error(), last_error()
    assert counts().frees == before
    library.pny_torch_record_stream(block, None)
    assert last_error() == "", last_error()
    library.pny_torch_free(block, 1000, 0, None)
    assert last_error() == ""
    library.pny_torch_free(block, 1000, 0, None)
    assert hex(block) in last_error(), "freed twice"
    library.pny_torch_free(None, 0, 0, None)
    assert counts().frees == before + 1


def devices_that_are_not_there():
    for device, word in ((-1, "devices are 0 to 63"), (64, "devices are 0 to 63"), (1, "one device")):
        assert library.pny_torch_malloc(100, device, None) is None
        assert word in last_error(), (device, last_error())
        assert library.pny_cupy_malloc(None, 100, device) is None
    assert library.pny_torch_malloc(0, 0, None) is None
    assert library.pny_torch_malloc(1 << 40, 0, None) is None
    assert "pny_torch_malloc" in last_error(), last_error()


def cupy_s_shape():
    blocks = [library.pny_cupy_malloc(None, 100 * size + 1, 0) for size in range(50)]
    assert all(blocks) and len(set(blocks)) == 50
    for block in blocks:
        library.pny_cupy_free(None, block, 0)
    assert counts().live_blocks == 0
    released = ctypes.c_size_t()
    assert library.pny_plug_retire(0, None) == 0, last_error()
    assert library.pny_plug_trim(0, ctypes.byref(released)) == 0, last_error()
    assert counts().reserved_bytes == 0 and released.value > 0, (counts().reserved_bytes, released.value)


def threads_do_not_share_blocks():
    def work(number, faults):
        for _ in range(300):
            block = library.pny_torch_malloc(4096, 0, None)
            ctypes.memset(block, number, 4096)
            if ctypes.string_at(block, 4096) != bytes([number]) * 4096:
                faults.append(number)
            library.pny_torch_free(block, 4096, 0, None)

    faults = []
    threads = [threading.Thread(target=work, args=(number, faults)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults and counts().live_blocks == 0


def a_child_is_refused():
    block = library.pny_torch_malloc(100, 0, None)
    child = os.fork()
    if child == 0:
        refused = library.pny_torch_malloc(100, 0, None) is None and "fork" in last_error()
        now, released = Counts(size=ctypes.sizeof(Counts)), ctypes.c_size_t()
        refused &= library.pny_plug_stats(0, ctypes.byref(now)) != 0 and "fork" in last_error()
        refused &= library.pny_plug_trim(0, ctypes.byref(released)) != 0 and "fork" in last_error()
        library.pny_torch_free(block, 100, 0, None)
        os._exit(0 if refused else 1)
    assert os.waitpid(child, 0)[1] == 0
    library.pny_torch_free(block, 100, 0, None)
    assert last_error() == "", last_error()


def a_log_that_cannot_be_written_ends_nobody():
    program = (
        "import ctypes, sys\n"
        "free = ctypes.CDLL(sys.argv[1]).pny_torch_free\n"
        "free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]\n"
        "free(0x1000, 8, 0, None)\n"
    )
    with open("/dev/full", "w") as full:
        ended = subprocess.run([sys.executable, "-c", program, path], stderr=full, env={**os.environ, "PINYARD_DRIVER": "simulated"})
    assert ended.returncode == 0, ended.returncode


def a_wrong_variable_is_named():
    program = (
        f"import ctypes; l = ctypes.CDLL({path!r}); l.pny_last_error.restype = ctypes.c_char_p;"
        "l.pny_torch_malloc(ctypes.c_size_t(1), 0, None); print(l.pny_last_error().decode())"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PINYARD_DRIVER": "rocm"}, capture_output=True, text=True
    )
    assert "PINYARD_DRIVER" in said.stdout and "cuda or simulated" in said.stdout, said
    assert "cuda or simulated" in said.stderr, "PyTorch says nothing: stderr must"


os.environ["PINYARD_DRIVER"] = "simulated"
passed = failed = 0
for test in (
    before_anything,
    contents_stay,
    a_block_is_found_by_its_address,
    wrong_frees_are_refused,
    devices_that_are_not_there,
    cupy_s_shape,
    threads_do_not_share_blocks,
    a_child_is_refused,
    a_log_that_cannot_be_written_ends_nobody,
    a_wrong_variable_is_named,
):
    try:
        test()
        passed += 1
        print(f"{test.__name__}: ok")
    except AssertionError as error:
        failed += 1
        print(f"{test.__name__}: FAILED: {error!r}")
print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0)
