#!/usr/bin/env python3
"""Bcast and Allreduce of CuPy arrays by mpi4py's communicator, through pinyard: with an MPI
that knows nothing of devices.

    mpirun -n 2 mpi4py_bcast.py libpinyard_mpi_openmpi.so.0 [libpinyard.so.0]

The first library is the one of mpi4py's MPI. With PINYARD_DRIVER=simulated the device is
simulated, and CuPy is not wanted: memory comes from the second library. Ends with status
77 where there is no mpi4py, or neither CuPy with a GPU nor a simulated device.
"""
import ctypes
import os
import sys

try:
    from mpi4py import MPI
except ImportError:
    sys.exit(77)


class Pinyard:
    """A communicator for device memory over mpi4py's `comm`."""

    def __init__(self, path, comm, device):
        self.library = ctypes.CDLL(path)
        self.library.pny_mpi_last_error.restype = ctypes.c_char_p
        self.handle = ctypes.c_void_p()
        # MPI's handles are pointers in some MPIs, and ints in others: as mpi4py has them.
        self.kind = {ctypes.sizeof(ctypes.c_void_p): ctypes.c_void_p, ctypes.sizeof(ctypes.c_int): ctypes.c_int}
        create = self.library.pny_mpi_comm_create
        self.check(create(self.mpi(comm), ctypes.c_int(device), ctypes.byref(self.handle)))

    def mpi(self, value):
        return self.kind[MPI._sizeof(value)].from_address(MPI._addressof(value))

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.library.pny_mpi_last_error().decode())

    def plan(self):
        text = ctypes.create_string_buffer(512)
        self.check(self.library.pny_mpi_plan(self.handle, text, ctypes.c_size_t(len(text)), None))
        return text.value.decode()

    def bcast(self, array, root=0, stream=0):
        """The root's `array` to every rank's; after the work of `stream` so far."""
        at, count, datatype = described(array)
        self.check(
            self.library.pny_mpi_bcast(
                ctypes.c_void_p(at), ctypes.c_int(count), self.mpi(datatype), ctypes.c_int(root), self.handle,
                ctypes.c_void_p(stream),
            )
        )

    def allreduce(self, array, op=MPI.SUM, stream=0):
        """Every rank's `array`, element by element, in place."""
        at, count, datatype = described(array)
        self.check(
            self.library.pny_mpi_allreduce(
                self.in_place(), ctypes.c_void_p(at), ctypes.c_int(count), self.mpi(datatype), self.mpi(op),
                self.handle, ctypes.c_void_p(stream),
            )
        )

    @staticmethod
    def in_place():
        # An int of mpi4py's, of the pointer that mpi.h defines.
        return ctypes.c_void_p(int(MPI.IN_PLACE))

    def close(self):
        self.check(self.library.pny_mpi_comm_destroy(self.handle))


def described(array):
    """Address, elements and MPI's datatype of what has __cuda_array_interface__."""
    interface = array.__cuda_array_interface__
    if interface.get("strides") is not None:
        raise ValueError("the array is not contiguous: copy it first")
    count = 1
    for length in interface["shape"]:
        count *= length
    types = {"<f4": MPI.FLOAT, "<f8": MPI.DOUBLE, "<i4": MPI.INT32_T, "<i8": MPI.INT64_T, "|u1": MPI.UINT8_T}
    return interface["data"][0], count, types[interface["typestr"]]


class Plain:
    """Memory of the simulated device, as CuPy's arrays show theirs."""

    def __init__(self, library, length):
        library.pny_torch_malloc.restype = ctypes.c_void_p
        self.at = library.pny_torch_malloc(ctypes.c_size_t(8 * length), ctypes.c_int(0), None)
        self.library, self.values = library, (ctypes.c_double * length).from_address(self.at)
        shape = {"shape": (length,), "typestr": "<f8", "data": (self.at, False), "version": 3}
        self.__cuda_array_interface__ = shape

    def set(self, values):
        self.values[:] = values

    def get(self):
        return list(self.values)

    def free(self):
        self.library.pny_torch_free(ctypes.c_void_p(self.at), ctypes.c_size_t(0), ctypes.c_int(0), None)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    place = node.Get_rank()
    length, stream, device = 100_000, 0, 0
    if os.environ.get("PINYARD_DRIVER") == "simulated":
        library = ctypes.CDLL(sys.argv[2] if len(sys.argv) > 2 else "libpinyard.so.0")
        field = Plain(library, length)
        field.set([0.5 * cell if rank == 0 else -1.0 for cell in range(length)])
    else:
        try:
            import cupy

            device = place % cupy.cuda.runtime.getDeviceCount()
        except Exception as error:  # CuPy's own are known only where it is installed
            print(error, file=sys.stderr)
            sys.exit(77)
        cupy.cuda.Device(device).use()
        field = 0.5 * cupy.arange(length, dtype="f8") if rank == 0 else cupy.full(length, -1.0)
        stream = cupy.cuda.get_current_stream().ptr

    ranks = Pinyard(sys.argv[1], world, device)
    if rank == 0:
        print(ranks.plan())
    ranks.bcast(field, root=0, stream=stream)
    got = [float(value) for value in field.get()]
    assert got == [0.5 * cell for cell in range(length)], "the root's field"
    ranks.allreduce(field, stream=stream)
    got = [float(value) for value in field.get()]
    assert got == [0.5 * cell * size for cell in range(length)], "the sum"
    ranks.close()
    if hasattr(field, "free"):
        field.free()
    if rank == 0:
        print(f"{size} ranks: {length} values broadcast and summed on the device")


main()
