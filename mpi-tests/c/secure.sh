#!/usr/bin/env bash
# Is every PINYARD_ variable ignored by a program that has more rights than its caller
# (AT_SECURE, getauxval(3))? Variables of each of their readers, by what they do to a program, and
# to the same program as a set-user-ID copy, where they must do nothing.
# `secure.sh [library] [preload] [mpi]`, all unless named; needs root and a user nobody.
set -u
cd "$(dirname "$0")/../.." || exit 2
target=${CARGO_TARGET_DIR:-$PWD/target}
[ $# -gt 0 ] || set -- library preload mpi

# What lies here everybody reaches, and set-user-ID counts; kept apart from the other
# programs' folder.
shelf=$(mktemp -d) && trap 'rm -rf "$shelf"' EXIT
said=$shelf/said
. xtask/ci/checks.sh
if [ "$(id -u)" -ne 0 ] || ! id nobody > /dev/null 2>&1; then
    skip "set-user-ID: needs root, and a user nobody" && counts && exit
elif findmnt -n -o OPTIONS -T "$shelf" | grep -qw nosuid; then
    skip "set-user-ID: $shelf is mounted nosuid" && counts && exit
fi
chmod 755 "$shelf" && mkdir -m 1777 "$shelf/traces"
for name in $(compgen -e | grep -E '^(PINYARD_|OMPI_|PMIX_|FI_|LD_PRELOAD$)' || true); do unset "$name"; done
# A rank by itself, which starts no daemon: Open MPI's would refuse to be root's.
export OMPI_MCA_ess_singleton_isolated=1

share() { for file in "$@"; do install -m 755 "$file" "$shelf/" || cannot "find $file"; done; }
compile() { # output, arguments...
    local output=$shelf/$1
    shift
    "$@" -std=c11 -Wall -Wextra -Werror -pedantic -D_GNU_SOURCE -I src/include -o "$output" || cannot "compile $output"
    set_uid "$output"
}
set_uid() { cp "$1" "$1-set-uid" && chown nobody "$1-set-uid" && chmod 4755 "$1-set-uid"; }
# What it says, and which traces it leaves.
told() {
    rm -f "$shelf"/traces/*
    limited 300 env "$2" "$1" "${arguments[@]}" > "$shelf/told" 2>&1
    find "$shelf/traces" -type f -printf 'trace: %f\n' >> "$shelf/told"
}
# variable NAME=VALUE PROGRAM WORDS: the program says WORDS, its set-user-ID copy does not,
# and both get to their end.
variable() { check "${1%%=*}, $2" heeded_or_not "$@"; }
heeded_or_not() {
    told "$shelf/$2" "$1"
    cat "$shelf/told"
    grep -q -- "$3" "$shelf/told" || { noted="does nothing to a program with its caller's rights" && return 1; }
    told "$shelf/$2-set-uid" "$1"
    ignored "$3"
}
# The program that has spoken last did not say WORDS, and got to its end.
ignored() {
    cat "$shelf/told"
    ! grep -q -- "$1" "$shelf/told" || { noted="heeded where AT_SECURE is set" && return 1; }
    grep -qE '^gpu-ranks: ' "$shelf/told" || { grep -q '^AT_SECURE 1$' "$shelf/told" && grep -q '^completed$' "$shelf/told"; } ||
        { noted="not to its end where AT_SECURE is set" && return 1; }
}

# capable NAME=VALUE PROGRAM WORDS: a copy with a file capability does not say WORDS to a user
# without rights, and gets to its end.
capable() { check "${1%%=*}, $2 with a file capability" ignored_by_capable "$@"; }
ignored_by_capable() {
    local copy=$shelf/$2-capable
    command -v setcap > /dev/null || { echo "file capabilities: no setcap (libcap2-bin)" && return 77; }
    if ! install -m 755 "$shelf/$2" "$copy" || ! setcap cap_net_raw+ep "$copy" 2> "$shelf/told"; then
        echo "file capabilities: $(tail -n 1 "$shelf/told")" && return 77
    fi
    limited 300 setpriv --reuid nobody --regid nogroup --clear-groups env "$1" "$copy" > "$shelf/told" 2>&1
    ignored "$3"
}

xtask/ci/build.sh debug || cannot "build libpinyard"
share "$target/debug/libpinyard.so" && ln -s libpinyard.so "$shelf/libpinyard.so.0"
ours=(mpi-tests/c/secure.c -L "$shelf" "-Wl,-rpath,$shelf")
for part in "$@"; do
    arguments=()
    case $part in
        library)
            compile secure gcc "${ours[@]}" -lpinyard
            variable PINYARD_HOOKS=nonsense secure '^registry: 5 .*PINYARD_HOOKS'
            variable "PINYARD_TRACE=$shelf/traces" secure '^trace: '
            variable PINYARD_TRACE_EVENTS=nonsense secure '^registry: 5 .*PINYARD_TRACE_EVENTS'
            variable PINYARD_POOL_LIMIT=nonsense secure '^pool: 5 .*PINYARD_POOL_LIMIT'
            variable PINYARD_POOL_SLAB_BYTES=nonsense secure '^pool: 5 .*PINYARD_POOL_SLAB_BYTES'
            variable PINYARD_DRIVER=nonsense secure '^plug: .*PINYARD_DRIVER'
            capable PINYARD_HOOKS=nonsense secure '^registry: 5 .*PINYARD_HOOKS'
            capable PINYARD_DRIVER=nonsense secure '^plug: .*PINYARD_DRIVER'
            ;;
        preload)
            [[ $(ldconfig -p) = *libfabric.so.1* ]] || { skip "preload: no libfabric.so.1" && continue; }
            share "$target/debug/libpinyard_preload.so"
            compile secure-preload gcc -DLIBFABRIC "${ours[@]}" -Wl,--no-as-needed -lpinyard_preload -lpinyard -lfabric
            variable PINYARD_LOG=info secure-preload 'memory monitor imported'
            for name in LOG PRELOAD LIBFABRIC UCX; do
                variable PINYARD_$name=nonsense secure-preload "PINYARD_$name is 'nonsense'"
            done
            ;;
        mpi)
            command -v mpicc.openmpi > /dev/null || { skip "mpi: no mpicc.openmpi" && continue; }
            xtask/ci/build.sh openmpi || cannot "build libpinyard_mpi"
            programs=$target/openmpi/release
            share "$programs/gpu-ranks" && set_uid "$shelf/gpu-ranks"
            compile secure-mpi mpicc.openmpi -DLIBPINYARD_MPI "${ours[@]}" "$programs/libpinyard_mpi_c.a" -lpinyard -lm
            variable PINYARD_DRIVER=nonsense secure-mpi '^communicator: .*PINYARD_DRIVER'
            arguments=(--soak 0)
            for name in MPI_PATH MPI_CHUNK_BYTES MPI_CHUNKS MPI_RANKS_PER_NODE CUDA_AWARE; do
                variable PINYARD_$name=nonsense gpu-ranks "PINYARD_$name"
            done
            ;;
        *) cannot "check $part: there is no such part" ;;
    esac
done
counts
