#!/usr/bin/env bash
# mpi4py and CuPy through pinyard, of what xtask/ci/gpu/python-carry.sh has put in carried/: two
# ranks, on two GPUs where there are as many. Status 77 where a library is not there.
# PINYARD_DRIVER=simulated runs it without CuPy and GPU.
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit
carried=$PWD/carried
[ -d "$carried/openmpi" ] || exit 77
chmod +x "$carried"/openmpi/bin/*
[ -e "$carried/libpinyard.so.0" ] || cp "$carried/libpinyard.so" "$carried/libpinyard.so.0"
export OPAL_PREFIX=$carried/openmpi OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1
export PYTHONPATH=$carried/mpi4py LD_LIBRARY_PATH=$carried/openmpi/lib:$carried${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export MPI4PY_MPIABI=openmpi PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
timeout -k 10 120 "$carried/openmpi/bin/mpirun" --oversubscribe --bind-to none --mca pml ob1 --mca btl self,sm -n 2 \
    python3 examples/python/mpi4py_bcast.py libpinyard_mpi_openmpi.so.0 libpinyard.so.0
