#!/usr/bin/env bash
# Builds what is linked with an MPI, for each MPI of this machine, into target/package:
# libpinyard_mpi, and the programs that an installation has for its MPI.
#
#   packaging/mpi.sh [found]    those whose compiler wrappers there are; one that cannot be
#                               built is left out, with the reason
#   packaging/mpi.sh all        the same, and one that cannot be built is a failure
#   packaging/mpi.sh NAME...    openmpi, mpich, abi: these, beside those built before
#   packaging/mpi.sh none       takes away what was built
#   packaging/mpi.sh list       the wrappers that `found` takes; builds nothing
#
# The wrapper of Open MPI is $MPICC_OPENMPI, or mpicc.openmpi, or mpicc where that is Open
# MPI's; MPICH's likewise; that of the standard ABI of MPI 5.0 is $MPICC_ABI, or mpicc_abi.
# Prints the names. Installs nothing and needs no rights, but libclang for rsmpi's bindings.
set -euo pipefail
cd "$(dirname "$0")/.."
. packaging/common.sh

# is_of MPI WRAPPER: whether the wrapper's mpi.h is that MPI's.
is_of() {
    local macro
    case $1 in openmpi) macro=OMPI_MAJOR_VERSION ;; mpich) macro=MPICH_VERSION ;; esac
    "$2" -E -dM -x c - <<< '#include <mpi.h>' 2> /dev/null | grep "^#define $macro " > /dev/null
}
wrapper_of() {
    local named
    case $1 in
        openmpi) named=${MPICC_OPENMPI:-} ;;
        mpich) named=${MPICC_MPICH:-} ;;
        abi) named=${MPICC_ABI:-mpicc_abi} ;;
        *) fail "no such MPI: $1" ;;
    esac
    command -v "${named:-mpicc.$1}" && return
    # Where there is one MPI, as with most modules.
    [ -z "$named" ] && is_of "$1" mpicc && command -v mpicc
}
found() { for mpi in openmpi mpich abi; do if wrapper_of "$mpi" > /dev/null; then echo "$mpi"; fi; done; }

# built_with MPI WRAPPER: into target/MPI, where the tests of that MPI build as well.
built_with() {
    local mpi=$1 wrapper=$2 target=${package%/package}/$1 library=$package/libpinyard_mpi_$1.so features="gpu verbs" name
    # The library is made last, and with it the MPI is there for packaging/install.sh.
    rm -rf "$library"* "${package:?}/$mpi"
    build() { MPICC=$wrapper release --target-dir "$target" "$@"; }
    "$wrapper" -E -x c - <<< '#include <mpi.h>' > /dev/null || { echo "error: $wrapper compiles no mpi.h" >&2 && return 1; }
    # The stress test's RDMA is compiled against libibverbs' headers, and linked with it.
    if ! "$wrapper" -E -x c - <<< '#include <infiniband/verbs.h>' > /dev/null 2>&1; then
        echo "mpi: no infiniband/verbs.h: pinyard-stress for $mpi is without the backend verbs" >&2
        features="gpu stress"
    fi
    build -p pinyard-mpi-tests --features "$features" "${mpi_tests_programs[@]/#/--bin=}" || return
    build -p pinyard-mpi --bin pinyard-mpi-probe || return
    build -p pinyard-mpi --example bcast_gpu || return
    build -p pinyard-mpi-c || return
    mkdir -p "$package/$mpi"
    for name in "${mpi_programs[@]}"; do
        built=$target/release/$name
        [ -e "$built" ] || built=$target/release/examples/$name
        # A tenth of their length: backtraces keep the functions' names. The naive cache's hang is
        # told by functions that were inlined as well.
        case $name in
            rounds-naive) cp "$built" "$package/$mpi/" || return ;;
            *) strip --strip-debug -o "$package/$mpi/$name" "$built" || return ;;
        esac
    done
    # Its MPI after what needs it, and no run path: which library serves is the loader's.
    "$wrapper" -shared -o "$library.$version" -Wl,-soname,"libpinyard_mpi_$mpi.so.$soname" \
        -Wl,--version-script=packaging/libpinyard_mpi.map -Wl,--whole-archive "$target/release/libpinyard_mpi_c.a" \
        -Wl,--no-whole-archive -Wl,--gc-sections -Wl,--as-needed -Wl,--no-undefined -Wl,-z,relro,-z,now,-z,noexecstack "${system[@]}" || return
    ln -sfn "libpinyard_mpi_$mpi.so.$version" "$library.$soname"
    ln -sfn "libpinyard_mpi_$mpi.so.$soname" "$library"
}

mpis=("$@") must=yes
case "${*:-found}" in
    list)
        for mpi in $(found); do echo "$mpi $(wrapper_of "$mpi")"; done
        exit
        ;;
    none)
        for mpi in openmpi mpich abi; do rm -rf "$package/libpinyard_mpi_$mpi.so"* "${package:?}/$mpi"; done
        exit
        ;;
    all) mapfile -t mpis < <(found) ;;
    found) mapfile -t mpis < <(found) && must=no ;;
esac
if [ ${#mpis[@]} -gt 0 ] && ! command -v cargo > /dev/null; then
    echo "mpi: no cargo; what was built before is taken"
    exit
fi
mkdir -p "$package"
log=$(mktemp) && trap 'rm -f "$log"' EXIT
for mpi in "${mpis[@]}"; do
    wrapper=$(wrapper_of "$mpi") || fail "no compiler wrapper of $mpi"
    if [ "$mpi" = abi ]; then
        export MPICC_ABI=$wrapper
        wrapper=$PWD/mpi/c/abi/mpicc
    fi
    if built_with "$mpi" "$wrapper" 2> "$log"; then
        cat "$log" >&2
        echo "$mpi"
    elif [ $must = yes ]; then
        cat "$log" >&2
        fail "could not build for $mpi, with $wrapper; MPI=none builds without any"
    else
        echo "mpi: left out $mpi, which could not be built with $wrapper: $(grep -m 1 libclang "$log" || grep -m 1 '^error' "$log" || tail -n 1 "$log")" >&2
        echo "mpi: \`make build MPI=$mpi\` shows all of it; on Debian it needs libclang-dev" >&2
    fi
done
