#!/bin/bash
# The hooks on other kernels, each on an emulated node: the patcher's tests, those of what
# is noticed, the table of `pinyard doctor hooks`, and ten minutes of the generator's programs.
# Takes about twenty minutes a kernel, so it is no part of `make test`; docs/benchmarks/kernels
# has what it printed.
#
#   mpi-tests/cluster/kernels.sh OUT [NAME...]   all kernels of the list unless named
set -u
here=$(cd "$(dirname "$0")" && pwd) # as run.sh
out=$(mkdir -p "${1:?usage: kernels.sh OUT [NAME...]}" && cd "$1" && pwd) || exit 2
shift
cd "$here/../.." || exit 2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
said=$work/said
. xtask/ci/checks.sh
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd) || exit 2

# Where a mirror of Ubuntu's has its kernels: .../ubuntu/pool/main/l.
readonly ubuntu=${UBUNTU_KERNELS:-}
# 5.15, the oldest that everything is promised on, as Ubuntu 22.04 has it; Debian 12's own;
# and its newer one, which the cluster uses.
declare -A kernels=(
    [5.15]="$ubuntu/linux-signed/linux-image-5.15.0-25-generic_5.15.0-25.25_amd64.deb
        $ubuntu/linux/linux-modules-5.15.0-25-generic_5.15.0-25.25_amd64.deb
        $ubuntu/linux/linux-modules-extra-5.15.0-25-generic_5.15.0-25.25_amd64.deb"
    [6.1]="linux-image-amd64"
    [6.12]="linux-image-6.12-amd64"
)
[ $# -gt 0 ] || set -- "${!kernels[@]}"

xtask/ci/build.sh release || cannot "build pinyard"
generator=$target/kernels/generator
mpi-tests/generator/build.sh "$generator" "$target/release" || cannot "build the generator"
built() { # package, test: the binary that cargo has just built
    cargo test --quiet --release --no-run --message-format json -p "$1" --test "$2" |
        sed -n "s/.*\"name\":\"$2\".*\"executable\":\"\([^\"]*\)\".*/\1/p"
}
tests=()
# Without `flips`: 3,000 of them take this emulation half an hour.
for test in the_hook_itself every_function_is_seen neighbours_in_text forks; do
    tests+=("$(built pinyard-hooks $test)")
done
for test in every_change_is_noticed changes_by_a_ring shared_memory no_stale_hit; do
    tests+=("$(built pinyard-registry $test)")
done

# recorded COMMAND...: what it says is in the kernel's file as well.
recorded() {
    local status=0
    "$@" > "$work/part" 2>&1 || status=$?
    tee -a "$out/$name.txt" < "$work/part"
    return $status
}
# Read once over the share, and not by each process of the table.
tested() {
    LIMIT=600 recorded "$here/nodes.sh" exec 0 "cp $1 /dev/shm/test; RUST_TEST_THREADS=1 PINYARD_TEST_PATIENCE=550 /dev/shm/test 2>&1"
}
table() {
    LIMIT=1800 recorded "$here/nodes.sh" exec 0 "cp $target/release/pinyard /dev/shm/; /dev/shm/pinyard doctor hooks"
}
# The time that a program may take is of a machine that is emulated.
generated() {
    LIMIT=1200 recorded "$here/nodes.sh" exec 0 "cp -r $generator /dev/shm/generator; cp $target/release/libpinyard.so /dev/shm/libpinyard.so.0
        LD_LIBRARY_PATH=/dev/shm /dev/shm/generator/generator --objects /dev/shm/generator --seconds 600 --limit 200 --shrink 200"
}
for name in "$@"; do
    if [ "$name" = 5.15 ] && [ -z "$ubuntu" ]; then
        skip "5.15: UBUNTU_KERNELS names no mirror of Ubuntu's" && continue
    fi
    export CLUSTER=$target/kernels/$name LIFE=4500 PINYARD_CLUSTER_KERNEL=${kernels[$name]}
    check "$name: its kernel is made" "$here/build.sh" "$CLUSTER"
    SHARE=$(mktemp -d /tmp/pinyard-cluster.XXXXXX) || exit 2
    export SHARE
    trap '"$here/nodes.sh" down; rm -rf "$work"' EXIT
    : > "$out/$name.txt"
    check "$name: it boots" recorded "$here/nodes.sh" up 1
    for program in "${tests[@]}"; do check "$name: $(basename "${program%-*}")" tested "$program"; done
    check "$name: pinyard doctor hooks" table
    check "$name: the generator's programs" generated
    "$here/nodes.sh" down
    trap 'rm -rf "$work"' EXIT
done
counts
