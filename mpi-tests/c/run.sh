#!/usr/bin/env bash
# The C interface from C: the examples and the misuse of it, compiled by gcc and clang as
# C11 and by g++ as C++17, C++ and Fortran by their compilers, with every warning an error,
# linked dynamically and statically, run plainly, under valgrind and under the sanitizers;
# the MPI programs under two MPIs; a program compiled against the first header; set-user-ID
# programs (secure.sh). Outputs of failures are shown.
set -u
cd "$(dirname "$0")/../.." || exit 2
target=${CARGO_TARGET_DIR:-$PWD/target}
build=$target/c-programs
library=$target/debug
here=./mpi-tests/c
mkdir -p "$build" || exit 2
said=$build/said
. xtask/ci/checks.sh
. mpi-tests/c/records.sh

xtask/ci/build.sh debug || cannot "build libpinyard"
ln -sf libpinyard.so "$library/libpinyard.so.0"

warnings=(-Wall -Wextra -Werror -pedantic -Wconversion -Wshadow -Wno-sign-conversion -O1 -g -D_GNU_SOURCE)
dynamic=(-L "$library" "-Wl,-rpath,$library" -lpinyard -lpthread)
# What the Rust standard library and the loader's functions need; see docs/src/c.md.
static=("$library/libpinyard.a" -lgcc_s -lutil -lrt -lpthread -lm -ldl)
c11=(-std=c11 "${warnings[@]}" -I src/include)
cpp=(-std=c++17 "${warnings[@]}" -I src/include -x c++)

# Its status counts as well: what ends badly after its last line has failed.
runs() {
    local status=0
    limited 300 "$@" > "$build/output" || status=$?
    cat "$build/output"
    [ $status -eq 0 ] && grep -q '^completed$' "$build/output"
}
# Leaks that count: what the program or the library no longer reaches.
under_valgrind() {
    limited 600 valgrind --quiet --error-exitcode=9 --leak-check=full \
        --errors-for-leak-kinds=definite,indirect --show-leak-kinds=definite,indirect \
        --suppressions=$here/valgrind.supp "$@" > "$build/output" && grep -q '^completed$' "$build/output"
}
compiles_and_runs() { # output, arguments of the compiler...
    local output=$build/$1
    shift
    "$@" -o "$output" && runs "$output"
}

# ---- Compilers ------------------------------------------------------------------------
others='' # `rest`, after the first program that the other compilers have made
for source in examples/c/transport.c examples/c/pools.c $here/misuse.c; do
    name=$(basename "$source" .c)
    check "$name gcc" compiles_and_runs "$name-gcc" gcc "${c11[@]}" "$source" "${dynamic[@]}"
    $others check "$name clang" compiles_and_runs "$name-clang" clang "${c11[@]}" "$source" "${dynamic[@]}"
    $others check "$name g++" compiles_and_runs "$name-g++" g++ "${cpp[@]}" "$source" -x none "${dynamic[@]}"
    check "$name static" compiles_and_runs "$name-static" gcc "${c11[@]}" "$source" "${static[@]}"
    check "$name notify" runs "$build/$name-gcc" notify
    check "$name sanitizers" compiles_and_runs "$name-asan" gcc "${c11[@]}" -fsanitize=address,undefined \
        -fno-sanitize-recover=all "$source" "${dynamic[@]}"
    # valgrind runs a translation of libc, which may not be patched there.
    check "$name valgrind" under_valgrind "$build/$name-gcc" notify
    others=rest
done
waits() {
    gcc "${c11[@]}" -DPLUGIN -shared -fPIC -o "$build/libwaits.so" $here/waits.c &&
        gcc "${c11[@]}" -rdynamic -o "$build/waits" $here/waits.c "${dynamic[@]}" && runs "$build/waits" "$build/libwaits.so"
}
check "a constructor that waits for a thread's first get" waits
ends() {
    cp "$(realpath "$target/release/libpinyard.so")" "$build/libsecond.so" &&
        gcc "${c11[@]}" -o "$build/ends" $here/ends.c "${dynamic[@]}" -pthread -ldl && runs "$build/ends" "$build/libsecond.so"
}
check "a process ends with its program's last thread" ends
check "threads that are cancelled, keys that are used up" compiles_and_runs threads gcc "${c11[@]}" $here/threads.c "${dynamic[@]}"
# ---- C++ ------------------------------------------------------------------------------
source=examples/c++/transport.cpp
cpp17=(-std=c++17 "${warnings[@]}" -I src/include)
check "C++ g++" compiles_and_runs c++-g++ g++ "${cpp17[@]}" $source "${dynamic[@]}"
check "C++ clang++" compiles_and_runs c++-clang clang++ "${cpp17[@]}" $source "${dynamic[@]}"
check "C++ notify" runs "$build/c++-g++" notify
check "C++ sanitizers" compiles_and_runs c++-asan g++ "${cpp17[@]}" -fsanitize=address,undefined -fno-sanitize-recover=all \
    $source "${dynamic[@]}"
check "C++ valgrind" under_valgrind "$build/c++-g++" notify
check "Fortran" compiles_and_runs fortran gfortran -std=f2018 -Wall -Wextra -Werror -pedantic -g -fcheck=all -J "$build" \
    src/include/pinyard.f90 examples/fortran/transport.f90 "${dynamic[@]}"
check "Fortran valgrind" under_valgrind "$build/fortran" notify

header_alone() { printf '#include <pinyard.h>\nint main(void) { return 0; }\n' > "$build/alone.c" && "$@" -c -o "$build/alone.o" "$build/alone.c"; }
check "header alone, C11" header_alone gcc "${c11[@]}"
check "header alone, C99" header_alone gcc -std=c99 "${warnings[@]}" -I src/include
check "header alone, C++11" header_alone g++ -std=c++11 "${warnings[@]}" -I src/include -x c++
check "C++ header alone" bash -c "printf '#include <pinyard.hpp>\nint main() { return 0; }\n' > '$build/alone.cpp' && g++ -std=c++17 -Wall -Wextra -Werror -pedantic -I src/include -c -o '$build/alone.o' '$build/alone.cpp'"
check "the book's words on linking" grep -qF -- "-lgcc_s -lutil -lrt -lpthread -lm -ldl" docs/src/c.md

# Where io_uring is refused, the example says so.
book() {
    sed -n '/^```c file=five.c$/,/^```$/p' docs/src/c.md | sed '/^```/d' > "$build/five.c" &&
        gcc "${c11[@]}" -o "$build/five" "$build/five.c" "${dynamic[@]}" && { "$build/five" 2>&1 || true; } | grep -E '^key |io_uring'
}
check "the book's example" book
# For root, where the kernel traces: tried on libc first.
traces() { limited 120 bpftrace "$@" 2> "$build/refused" | tee "$build/traced"; }
uprobe() {
    local commands
    commands=$(xtask/ci/block.sh docs/src/observability.md uprobe "/usr/local/lib=$library" "./five=$build/five") &&
        eval "${commands/#bpftrace/traces}" && grep -qx '@\[five\]: 1' "$build/traced"
}
if ! "$build/five" > /dev/null 2>&1; then
    skip "uprobes: five has no io_uring"
elif traces -e 'uprobe:libc:exit { @seen = count(); }' -c /bin/true | grep -q '^@seen: [1-9]'; then
    check "the book's uprobe" uprobe
else
    skip "uprobes: bpftrace: $(grep -m 1 . "$build/refused")"
fi

# ---- MPI ------------------------------------------------------------------------------
for name in $(compgen -e | grep -E '^(FI_|OMPI_MCA_|LD_PRELOAD$)' || true); do unset "$name"; done
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
openmpi() { runs mpirun.openmpi --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca btl self,vader --mca pml ob1 -n 2 "$@"; }
mpich() { runs mpirun.mpich -n 2 "$@"; }
# MPIs leave memory behind.
sanitized() { # includes
    "mpicc.$mpi" "$@" "${c11[@]}" -fsanitize=address,undefined -fno-sanitize-recover=all -o "$build/$example-asan-$mpi" \
        "examples/c/$example.c" "${dynamic[@]}" && ASAN_OPTIONS=detect_leaks=0 "$mpi" "$build/$example-asan-$mpi" 20
}
# No invalid access, and no leak, of ours or of the program's own.
mpi_valgrind() { # source, program and its arguments
    local source=$1
    shift
    rm -f "$build"/valgrind.*
    openmpi valgrind --leak-check=full --show-leak-kinds=definite --log-file="$build/valgrind.%p" \
        --suppressions=/usr/share/openmpi/openmpi-valgrind.supp --suppressions=$here/valgrind.supp "$@" || return 1
    [ "$(cat "$build"/valgrind.* | grep -c 'ERROR SUMMARY')" -ge 2 ] || return 1
    ! faults "$source" "$build"/valgrind.* | tee /dev/stderr | grep .
}
# What counts as a record of ours does not hang on the name of the folder that this lies in.
recorded() { # how many, edit of a record that is MPI's
    local count
    sed -E 's/^/==12== /' << 'EOF' | sed -E "$2" > "$build/recorded"
Command: /home/u/pinyard/target/c/ring-openmpi 20 notify

11 bytes in 1 blocks are definitely lost in loss record 1 of 3
   at 0x48407B4: malloc (vg_replace_malloc.c:381)
   by 0x5123A4: opal_thing (in /home/u/pinyard/lib/libopen-pal.so.40.30.2)
   by 0x109234: main (in /home/u/pinyard/target/c/ring-openmpi)

Use --track-origins=yes to see where uninitialised values come from
For lists of detected and suppressed errors, rerun with: -s /home/u/pinyard/log
EOF
    faults ring.c "$build/recorded" | tee /dev/stderr > "$build/ours"
    count=$(grep -c 'loss record\|track-origins' "$build/ours")
    [ "$count" -eq "$1" ]
}
check "valgrind's records: a folder called pinyard is none of ours" recorded 0 ''
check "valgrind's records: a function of ours" recorded 1 's/opal_thing .*/pny_get (boundary.rs:3)/'
check "valgrind's records: a library of ours" recorded 1 's|opal_thing .*|??? (in /a b/libpinyard.so.0)|'
check "valgrind's records: a line of the program's" recorded 1 '/opal_thing/d; s/main .*/main (ring.c:7)/'
check "valgrind's records: a line of the program's, below MPI" recorded 0 's/main .*/main (ring.c:7)/; s/opal_thing .*/MPI_Send (send.c:1)/'

others=''
for mpi in openmpi mpich; do
    if ! command -v "mpicc.$mpi" > /dev/null; then skip "examples under $mpi: no mpicc.$mpi" && continue; fi
    # Their headers are theirs: -isystem keeps the warnings to what is ours.
    includes=$(mpicc.$mpi -show | grep -oE -- '-I ?[^ ]+' | sed 's/-I */-isystem /' | tr '\n' ' ')
    for example in ring bcast halo_exchange; do
        # shellcheck disable=SC2086
        $others check "$example compiles for $mpi" "mpicc.$mpi" $includes "${c11[@]}" -o "$build/$example-$mpi" "examples/c/$example.c" "${dynamic[@]}"
        $others check "$example $mpi" "$mpi" "$build/$example-$mpi"
        # shellcheck disable=SC2086
        $others check "$example sanitizers, $mpi" sanitized $includes
        [ "$mpi" = openmpi ] || others=rest
    done
done
# A transport knows nothing of MPI, but for who starts it.
[ ! -x "$build/ring-openmpi" ] || check "transport, 2 processes under Open MPI" openmpi "$build/transport-gcc"
# valgrind runs a translation of libc, which may not be patched there: without hooks.
others=''
for example in ring bcast halo_exchange; do
    [ ! -x "$build/$example-openmpi" ] || $others check "$example valgrind, Open MPI" mpi_valgrind "$example.c" "$build/$example-openmpi" 20 notify
    others=rest
done
# A program's own mistakes are noticed among what MPI leaves behind.
noticed() { # what, how valgrind calls it
    ! mpi_valgrind faulty.c "$build/faulty" "$1" > "$build/noticed" 2>&1 && cat "$build/noticed" && grep -q "$2" "$build/noticed"
}
if [ -x "$build/ring-openmpi" ] && check "mistakes compile" mpicc.openmpi -g -o "$build/faulty" $here/faulty.c; then
    check "valgrind, Open MPI: a leak is noticed" noticed leak 'definitely lost'
    rest check "valgrind, Open MPI: an invalid read is noticed" noticed read 'Invalid read'
    rest check "valgrind, Open MPI: a use of what was not written is noticed" noticed use 'uninitialised'
    check "valgrind, Open MPI: without a mistake there is none" mpi_valgrind faulty.c "$build/faulty" none
fi
if check "translated compiles" gcc "${c11[@]}" -o "$build/translated" $here/translated.c "${dynamic[@]}"; then
    # Without --error-exitcode: valgrind counts system calls that it does not know.
    check "hooks under valgrind keep nothing" runs valgrind --quiet "$build/translated"
    check "hooks under valgrind are refused where one is not seen" runs valgrind --quiet "$build/translated" early
fi
if command -v mpicxx.openmpi > /dev/null; then
    includes=$(mpicxx.openmpi -show | grep -oE -- '-I ?[^ ]+' | sed 's/-I */-isystem /' | tr '\n' ' ')
    # shellcheck disable=SC2086
    check "ring as C++" mpicxx.openmpi $includes "${cpp[@]}" -DOMPI_SKIP_MPICXX -o "$build/ring-c++" examples/c/ring.c -x none "${dynamic[@]}"
fi

# ---- A program compiled against the first header ---------------------------------------
abi() {
    gcc -std=c11 "${warnings[@]}" -I $here/previous -o "$build/abi-previous" $here/abi.c "${dynamic[@]}" &&
        gcc "${c11[@]}" -o "$build/abi-today" $here/abi.c "${dynamic[@]}" &&
        "$build/abi-previous" > "$build/previous.txt" && "$build/abi-today" > "$build/today.txt" &&
        diff <(sed 's/^\([0-9]\): .*/\1/' "$build/previous.txt") <(sed 's/^\([0-9]\): .*/\1/' "$build/today.txt") &&
        grep -q '^completed$' "$build/previous.txt"
}
# Programs that were compiled against the header of a version run with today's library.
old_header() { gcc -std=c11 "${warnings[@]}" -I "$here/previous/$1" -o "$build/$2-$1" "$3" "${dynamic[@]}" && runs "$build/$2-$1"; }
for source in examples/c/transport.c examples/c/pools.c $here/misuse.c; do
    example=$(basename "$source" .c)
    check "$example with the header of 0.1" old_header 0.1 "$example" "$source"
done
if ldconfig -p | grep -q 'libfabric\.so\.1'; then check "the first header" abi; else skip "the first header: no libfabric.so.1"; fi

# ---- Rights of others ------------------------------------------------------------------
inner=yes $here/secure.sh library preload > "$build/secure" 2>&1
grep -vE '^[0-9]+ passed, ' "$build/secure"
include "$(tail -n 1 "$build/secure")" || check "secure.sh comes to its end" false

counts
