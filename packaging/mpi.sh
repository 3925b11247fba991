#!/usr/bin/env bash
# Builds libpinyard_mpi for each MPI of this machine, into target/package:
# `packaging/mpi.sh [openmpi] [mpich] [abi]`, without arguments those whose compiler
# wrappers there are. For Open MPI and MPICH that is mpicc.NAME (or MPICC_OPENMPI,
# MPICC_MPICH); for the standard ABI of MPI 5.0 mpicc_abi (or MPICC_ABI). Prints their
# names. Installs nothing and needs no rights, but libclang for rsmpi's bindings.
set -euo pipefail
cd "$(dirname "$0")/.."
. packaging/common.sh

wrapper_of() {
    case $1 in
        openmpi) command -v "${MPICC_OPENMPI:-mpicc.openmpi}" ;;
        mpich) command -v "${MPICC_MPICH:-mpicc.mpich}" ;;
        abi) command -v "${MPICC_ABI:-mpicc_abi}" ;;
        *) fail "no such MPI: $1" ;;
    esac
}
mpis=("$@")
if [ $# -eq 0 ]; then
    for mpi in openmpi mpich abi; do if wrapper_of "$mpi" > /dev/null; then mpis+=("$mpi"); fi; done
fi
mkdir -p "$package"
for mpi in "${mpis[@]}"; do
    wrapper=$(wrapper_of "$mpi") || fail "no compiler wrapper of $mpi"
    if [ "$mpi" = abi ]; then
        export MPICC_ABI=$wrapper
        wrapper=$PWD/collectives/c/abi/mpicc
    fi
    # Each has its own target folder: the bindings are those of its mpi.h.
    MPICC=$wrapper cargo build --release --quiet --target-dir "$package/cargo-$mpi" -p pinyard-mpi-c
    library=$package/libpinyard_mpi_$mpi.so
    # Its MPI after what needs it, and no run path: which library serves is the loader's.
    "$wrapper" -shared -o "$library.$version" -Wl,-soname,"libpinyard_mpi_$mpi.so.$soname" \
        -Wl,--version-script=packaging/libpinyard_mpi.map -Wl,--whole-archive "$package/cargo-$mpi/release/libpinyard_mpi_c.a" \
        -Wl,--no-whole-archive -Wl,--gc-sections -Wl,--as-needed -Wl,--no-undefined -Wl,-z,relro,-z,now,-z,noexecstack "${system[@]}"
    ln -sfn "libpinyard_mpi_$mpi.so.$version" "$library.$soname"
    ln -sfn "libpinyard_mpi_$mpi.so.$soname" "$library"
    echo "$mpi"
done
