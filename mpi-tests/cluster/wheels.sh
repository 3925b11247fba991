#!/bin/bash
# Intel MPI and MPICH as PyPI ships them, over verbs on an emulated node: without us their
# data is wrong, and MPI reports success; with libpinyard_preload.so none is.
#
#   mpi-tests/cluster/wheels.sh
set -u
# Not by its real path: the nodes' commands are split at spaces, and a link may have none.
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.." || exit 2
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd) || exit 2
wheels=$target/wheels
export CLUSTER=$target/cluster
mkdir -p "$CLUSTER" "$wheels"

# shellcheck source=mpi-tests/cluster/common.sh
. "$here/common.sh"
xtask/ci/build.sh release || cannot "build libpinyard_preload.so"
preload=$target/release/libpinyard_preload.so

fetch() { # name==version
    local folder=$wheels/$1
    [ -d "$folder" ] && return
    rm -rf "$folder.new" && mkdir -p "$folder.new"
    limited 200 python3 -m pip download --quiet --no-deps --dest "$folder.new" "$1" > "$wheels/pip" 2>&1 &&
        python3 -m zipfile -e "$folder.new"/*.whl "$folder.new/unpacked" &&
        mv "$folder.new"/unpacked/*.data/data "$folder" || return
    chmod +x "$folder"/bin/*
    rm -rf "$folder.new"
}
for wheel in impi-rt==2021.18.1 impi-devel==2021.18.1 mpich==5.0.2; do
    fetch $wheel || nothing "pip cannot download it: $wheel: $(tail -n 1 "$wheels/pip")"
done
intel=$wheels/impi-rt==2021.18.1 mpich=$wheels/mpich==5.0.2
compile() { # output, includes, libraries
    cc -std=gnu11 -O1 -g -Wall -Wextra -Werror -o "$CLUSTER/$1" -I "$2" "$here/tests/${1%-*}.c" -L "$3" -lmpi ||
        cannot "compile $1"
}
compile reuse-intel "$wheels/impi-devel==2021.18.1/include" "$intel/lib"
compile bcast-intel "$wheels/impi-devel==2021.18.1/include" "$intel/lib"
compile reuse-mpich "$mpich/include" "$mpich/lib"

common="HOME=/tmp FI_PROVIDER=verbs FI_UNIVERSE_SIZE=4"
of_intel() { # what is preloaded, program, arguments…
    local library=$1
    shift
    "$here/nodes.sh" exec 0 "env $common LD_LIBRARY_PATH=$intel/lib FI_PROVIDER_PATH=$intel/lib I_MPI_ROOT=$intel I_MPI_FABRICS=ofi I_MPI_PIN=0 \
        PATH=$intel/bin:\$PATH mpiexec.hydra -bootstrap fork -n 2 ${library:+-genv LD_PRELOAD $library} -genv PINYARD_LOG debug $*"
}
of_mpich() { # likewise
    local library=$1
    shift
    "$here/nodes.sh" exec 0 "env $common LD_LIBRARY_PATH=$mpich/lib:$mpich/lib/mpich FI_PROVIDER_PATH=$mpich/lib/mpich/libfabric MPIR_CVAR_CH4_NETMOD=ofi \
        MPIR_CVAR_NOLOCAL=1 \
        PATH=$mpich/bin:\$PATH mpiexec.hydra -launcher fork -n 2 ${library:+-genv LD_PRELOAD $library} -genv PINYARD_LOG debug $*"
}

# try NAME PATTERN… -- COMMAND…: it succeeds, and each extended pattern is in a line.
try() {
    check "$1" says 0 "${@:2}"
    [ -z "$aborted" ] || [ ! -e "$said" ] || cp "$said" "$work/died"
}

# Intel MPI ends with SIGILL on the nodes' default processor.
# Limits end hangs alone: 180 rounds of MPI take a minute on an emulated processor that is alone.
export LIMIT=600 LIFE=3600 RXE_CPU=max
right='reuse: 0 of 180 rounds wrong' wrong='reuse: [1-9][0-9]* of 180 rounds wrong'
cases() {
    rest try "Intel MPI 2021.18.1: wrong as shipped" "$wrong" -- of_intel '' "$CLUSTER/reuse-intel" 262144 12
    rest try "  pinyard: none" "$right" 'verbs-1\.[0-9]+-fi\.so: its cache, if it has one, cannot be reached' -- \
        of_intel "$preload" "$CLUSTER/reuse-intel" 262144 12
    try "Intel MPI with pinyard: mmap, Bcast, munmap" 'bcast: 16 rounds of 262144 bytes, 0 wrong' \
        'verbs-1\.[0-9]+-fi\.so: its cache, if it has one, cannot be reached' -- \
        of_intel "$preload" "$CLUSTER/bcast-intel" 262144 16 fresh
    rest try "MPICH 5.0.2: wrong as shipped" "$wrong" -- of_mpich '' "$CLUSTER/reuse-mpich" 262144 12
    rest try "  pinyard: none, with the cache" "$right" 'libfabric: [1-9][0-9]* lookups' -- \
        of_mpich "$preload" "$CLUSTER/reuse-mpich" 262144 12
}

on_nodes 1 cases
counts
