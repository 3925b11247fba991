#!/usr/bin/env bash
# libpinyard_mpi from C and Python, on simulated devices: packaged for Open MPI, MPICH and
# the standard ABI of MPI 5.0, the calls and the example compiled with every warning an
# error, on every path, under the sanitizers and valgrind, and installed.
# `mpi.sh [openmpi] [mpich] [abi]`, all unless named; QUICK=1: without the ABI and what is installed.
set -u
cd "$(dirname "$0")/../.." || exit 2
. packaging/common.sh
target=${CARGO_TARGET_DIR:-$PWD/target}
build=$target/c-mpi
library=$target/debug
mkdir -p "$build" || exit 2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
said=$work/said
. xtask/ci/checks.sh
. mpi-tests/c/records.sh
[ $# -gt 0 ] || set -- openmpi mpich abi

xtask/ci/build.sh debug || cannot "build libpinyard"
ln -sf libpinyard.so "$library/libpinyard.so.0"

# What an operator may have set is not for here.
for name in $(compgen -e | grep -E '^(PINYARD_|OMPI_|PMIX_|PRTE_|UCX_|FI_|LD_PRELOAD$)' || true); do unset "$name"; done
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PINYARD_DRIVER=simulated

# MPICH 5 of PyPI, which has libmpi_abi, its mpi.h and mpiexec.
fetch_abi() {
    [ -x "$target/mpich-abi/bin/mpicc_abi" ] && return
    python3 -m pip download --quiet --no-deps --dest "$work/wheel" mpich==5.0.2 || return
    python3 -m zipfile -e "$work"/wheel/mpich-*.whl "$work/unpacked" || return
    chmod +x "$work"/unpacked/mpich-*.data/data/bin/* && rm -rf "$target/mpich-abi" &&
        mv "$work"/unpacked/mpich-*.data/data "$target/mpich-abi"
}

# ranks COUNT COMMAND...: under the MPI of $mpi, as $seconds say at most.
seconds=300
ranks() {
    local count=$1
    shift
    case $mpi in
        openmpi)
            limited "$seconds" mpirun.openmpi --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 \
                --mca btl self,vader --mca pml ob1 -n "$count" "$@"
            ;;
        mpich) limited "$seconds" mpirun.mpich -n "$count" "$@" ;;
        # The libraries of the wheel lie where nobody looks.
        abi)
            LD_LIBRARY_PATH=$target/mpich-abi/lib limited "$seconds" \
                "$target/mpich-abi/bin/mpiexec" -n "$count" "$@"
            ;;
    esac
}
# runs COUNT WORDS VARIABLE=VALUE... PROGRAM...: ends well; where it tells its plan, that has the words.
runs() {
    local count=$1 words=$2 status=0
    shift 2
    ranks "$count" env "$@" > "$work/output" || status=$?
    cat "$work/output"
    # What ends badly after its last line has failed.
    [ $status -eq 0 ] && grep -q '^completed$' "$work/output" && grep -qE "$words" "$work/output"
}

warnings=(-Wall -Wextra -Werror -pedantic -Wconversion -Wshadow -Wno-sign-conversion -O1 -g -D_GNU_SOURCE)
c11=(-std=c11 "${warnings[@]}" -I src/include)
dynamic() { echo "-L$library -Wl,-rpath,$library -L$package -Wl,-rpath,$package -lpinyard_mpi_$mpi -lpinyard -ldl"; }
# Their headers are theirs: -isystem keeps the warnings to what is ours.
compile() { # output, arguments...
    local output=$1 includes
    shift
    includes=$("$wrapper" -show | grep -oE -- '-I ?[^ ]+' | sed 's/-I */-isystem /' | tr '\n' ' ')
    # shellcheck disable=SC2086,SC2046
    "$wrapper" $includes "$@" -o "$build/$output-$mpi" $(dynamic)
}
# No invalid access, and no leak that has a function of ours in it; MPIs have their own.
under_valgrind() {
    rm -f "$work"/valgrind.*
    seconds=600 ranks 2 valgrind --leak-check=full --show-leak-kinds=definite --log-file="$work/valgrind.%p" \
        --suppressions=/usr/share/openmpi/openmpi-valgrind.supp "$@" > "$work/output" || return 1
    grep -q '^completed$' "$work/output" && [ "$(cat "$work"/valgrind.* | grep -c 'ERROR SUMMARY')" -ge 2 ] || return 1
    ! faults gpu_bcast.c "$work"/valgrind.* | tee /dev/stderr | grep .
}

fortran() {
    # shellcheck disable=SC2046
    compile fortran.o "${c11[@]}" -c examples/fortran/gpu_allreduce_c.c &&
        "mpif90.$mpi" -std=f2018 -Wall -Wextra -Werror -g -fcheck=all -J "$work" -o "$build/fortran-$mpi" src/include/pinyard.f90 \
            examples/fortran/gpu_allreduce.f90 "$build/fortran.o-$mpi" $(dynamic)
}
exports() {
    local declared
    declared=$(gcc -fpreprocessed -dD -E src/include/pinyard_mpi.h 2> /dev/null | grep -oE '\bpny_mpi_[a-z_]+\(' | tr -d '(' | sort -u)
    # shellcheck disable=SC2001 # of every line
    diff <(sed 's/$/@@PINYARD_MPI_0.1/' <<< "$declared") <(nm -D --defined-only "$1" | awk '$2 == "T" { print $3 }' | LC_ALL=C sort) &&
        readelf -d "$1" | grep -F "[libpinyard_mpi_$mpi.so.0]" && readelf -d "$1" | grep BIND_NOW &&
        ! readelf -d "$1" | grep -E 'TEXTREL|RPATH|RUNPATH|libcuda|libpinyard\.so'
}

of_mpi() {
    local calls sanitize
    check "$mpi: packaging/mpi.sh" packaging/mpi.sh "$mpi"
    check "$mpi: what the library exports and needs" exports "$package/libpinyard_mpi_$mpi.so"
    check "$mpi: its calls compile" compile calls "${c11[@]}" mpi-tests/c/mpi_calls.c
    check "$mpi: the example compiles" compile bcast "${c11[@]}" examples/c/gpu_bcast.c
    printf '#include <pinyard_mpi.h>\nint main() { return pny_mpi_comm_destroy(nullptr) == PNY_OK; }\n' > "$build/alone.cpp"
    check "$mpi: the header alone, C++" compile alone -x c++ -std=c++17 "${warnings[@]}" -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX \
        -I src/include "$build/alone.cpp" -x none
    calls=$build/calls-$mpi
    check "$mpi: the example" runs 2 '^ipc: ' "$build/bcast-$mpi"
    check "$mpi: calls, ipc" runs 2 completed "$calls" big
    check "$mpi: calls, staged" runs 2 completed PINYARD_MPI_PATH=staged "$calls" big
    check "$mpi: calls, the pointer itself" runs 2 completed PINYARD_CUDA_AWARE=1 PINYARD_MPI_PATH=direct "$calls"
    if [ "$mpi" = openmpi ]; then
        # Ranks of the others spin: more of them than cores take minutes.
        check "$mpi: calls, 1 rank" runs 1 completed "$calls"
        check "$mpi: calls, 4 ranks" runs 4 completed "$calls"
        check "$mpi: calls, 3 ranks on 2 nodes" runs 3 completed PINYARD_MPI_RANKS_PER_NODE=2 "$calls" big
        check "$mpi: Fortran compiles" fortran
        check "$mpi: Fortran" runs 2 completed "$build/fortran-$mpi"
        # Compiled against the first header.
        check "$mpi: calls with the header of 0.1 compile" compile calls-0.1 -I mpi-tests/c/previous/0.1 "${c11[@]}" mpi-tests/c/mpi_calls.c
        check "$mpi: calls with the header of 0.1" runs 2 completed "$build/calls-0.1-$mpi"
        check "$mpi: valgrind" under_valgrind "$build/bcast-$mpi"
    fi
    sanitize=(-fsanitize=address -fsanitize=undefined -fno-sanitize-recover=all)
    check "$mpi: the sanitizers' build" compile calls-asan "${c11[@]}" "${sanitize[@]}" mpi-tests/c/mpi_calls.c
    check "$mpi: the sanitizers' example" compile bcast-asan "${c11[@]}" "${sanitize[@]}" examples/c/gpu_bcast.c
    # MPIs leave memory behind.
    check "$mpi: calls under the sanitizers" runs 2 completed ASAN_OPTIONS=detect_leaks=0 "$build/calls-asan-$mpi"
    check "$mpi: the example under the sanitizers" runs 2 '^ipc: ' ASAN_OPTIONS=detect_leaks=0 "$build/bcast-asan-$mpi"
}

for mpi in "$@"; do
    case $mpi in
        openmpi | mpich)
            wrapper=$(command -v "mpicc.$mpi") || { skip "$mpi: no mpicc.$mpi" && continue; }
            ;;
        abi)
            quick || fetch_abi || { skip "abi: mpich 5 is not to be had from PyPI" && continue; }
            wrapper=$target/mpich-abi/bin/mpicc_abi
            export MPICC_ABI=$wrapper
            ;;
        *) echo "no such MPI: $mpi" && exit 2 ;;
    esac
    if [ "$mpi" = abi ]; then rest of_mpi; else of_mpi; fi
done

# The library of the standard ABI asks for nothing but that.
standard() {
    local needed
    needed=$(readelf -d "$package/libpinyard_mpi_abi.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -i mpi)
    [ "$needed" = libmpi_abi.so.1 ]
}
[ ! -e "$package/libpinyard_mpi_abi.so" ] || rest check "abi: it needs libmpi_abi.so.1, wherever that is" standard

# ---- Python ----------------------------------------------------------------------------
python=$(for each in python3 /usr/bin/python3; do if $each -c 'import mpi4py' 2> /dev/null; then echo $each && break; fi; done)
if [ -z "$python" ]; then
    skip "mpi4py: it is not installed"
elif ! "$python" -c 'from mpi4py import MPI; raise SystemExit("Open MPI" not in MPI.Get_library_version())'; then
    skip "mpi4py: it is not Open MPI's"
elif [ -e "$package/libpinyard_mpi_openmpi.so.0" ]; then
    mpi=openmpi
    with_mpi4py() {
        ranks 2 "$python" examples/python/mpi4py_bcast.py "$package/libpinyard_mpi_openmpi.so.0" "$library/libpinyard.so" |
            tee "$work/output" && grep -q '^2 ranks: 100000 values broadcast and summed' "$work/output"
    }
    check "mpi4py: Bcast and Allreduce" with_mpi4py
fi

# ---- Rights of others ------------------------------------------------------------------
[ "$(id -u)" -ne 0 ] || [ ! -e "$package/libpinyard_mpi_openmpi.so.0" ] || rest check "set-user-ID: settings are ignored" mpi-tests/c/secure.sh mpi

# ---- Installed -------------------------------------------------------------------------
# A user's project with the page's lines, which runs where it was built.
cmakes() { # component
    local lines
    lines=$(xtask/ci/block.sh docs/src/install.md cmake-mpi "mpi-openmpi=$1") || return
    rm -rf "$work/user" && mkdir "$work/user" && cat > "$work/user/CMakeLists.txt" << END || return
cmake_minimum_required(VERSION 3.18)
project(user LANGUAGES C)
add_executable(prog $PWD/examples/c/gpu_bcast.c)
target_compile_options(prog PRIVATE -Wall -Wextra -Werror)
target_link_libraries(prog PRIVATE \${CMAKE_DL_LIBS})
$lines
END
    cmake -S "$work/user" -B "$work/user/build" -DCMAKE_PREFIX_PATH="$work/stage/opt/pinyard" \
        -DMPI_C_COMPILER=mpicc.openmpi && cmake --build "$work/user/build"
}
# The commands of the page, whose program is the example that is installed with them.
installed() {
    local mpi=openmpi here=$work/stage/opt/pinyard block
    block=$(xtask/ci/block.sh docs/src/gpu-mpi.md install '…=/opt/pinyard') || return
    # What `make build` runs: this, and packaging/mpi.sh for each MPI above.
    [ -e "$package/complete" ] || packaging/build.sh || return
    STAGE=$work/stage HERE=$here TREE=$PWD WORK=$work PKG_CONFIG_PATH=$here/lib/pkgconfig bash -euo pipefail -c '
        cd "$WORK"
        make() {
            [ "$1" != build ] || { command make --dry-run -C "$TREE" "$@" | grep -c "packaging/mpi.sh openmpi mpich" > /dev/null; return; }
            command make --silent -C "$TREE" -o build DESTDIR="$STAGE" "$@"
        }
        mpicc() {
            cp "$HERE/share/doc/pinyard/examples/c/gpu_bcast.c" prog.c
            mpicc.openmpi -std=c11 -o example "$@" -ldl
        }
        '"$block" || return
    readelf -d "$work/example" | grep -F libpinyard_mpi_openmpi.so.0 && readelf -V "$work/example" | grep PINYARD_MPI_0.1 || return
    man -l "$here/share/man/man3/pinyard_mpi.3" | grep MPI_Bcast || return
    LD_LIBRARY_PATH=$here/lib runs 2 '^ipc: ' "$work/example" || return
    cmakes mpi-openmpi && readelf -d "$work/user/build/prog" | grep -F libpinyard_mpi_openmpi.so.0 || return
    runs 2 '^ipc: ' "$work/user/build/prog" || return
    ! cmakes mpi-none 2> "$work/why" && grep -F 'there is no component mpi-none' "$work/why" || return
    # Without the libraries the header stays away as well.
    ! WITHOUT_MPI=1 packaging/install.sh list | grep -F _mpi
}
[ ! -e "$package/libpinyard_mpi_openmpi.so.0" ] || rest check "the page: make install, pkg-config; CMake" installed

counts
