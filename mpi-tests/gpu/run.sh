#!/bin/bash
# Device buffers between the ranks of Open MPI and MPICH, on the simulated device: every
# operation on every path, the examples, and what must be refused.
#
#   mpi-tests/gpu/run.sh [openmpi] [mpich]     both unless named; QUICK=1: of the second what differs
set -u
cd "$(dirname "$0")/../.." || exit 2
[ $# -gt 0 ] || set -- openmpi mpich
target=${CARGO_TARGET_DIR:-$PWD/target}
temporary=$(mktemp -d) || exit 2
trap 'rm -rf "$temporary"' EXIT
said=$temporary/said
. xtask/ci/checks.sh

# What probes of other runs have found out is not for here either.
export XDG_CACHE_HOME=$temporary/cache
# What an operator may have set is not for here.
for name in $(compgen -e | grep -E '^(PINYARD_|OMPI_|PMIX_|PRTE_|UCX_|FI_)' || true); do unset "$name"; done
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 UCX_LOG_LEVEL=error

# ranks COUNT VARIABLE=VALUE... PROGRAM...: under the MPI of $mpi.
ranks() {
	local count=$1
	shift
	case $mpi in
	openmpi)
		limited 180 env "$@" mpirun.openmpi --oversubscribe --bind-to none \
			--mca mpi_yield_when_idle 1 --mca oob_tcp_if_include lo --mca btl_tcp_if_include lo \
			-n "$count" "${program[@]}"
		;;
	mpich) limited 180 env LD_PRELOAD="$yields" "$@" mpirun.mpich -n "$count" "${program[@]}" ;;
	esac
}

# shown COUNT VARIABLE=VALUE...: ranks, whose words are in $temporary/out, and shown however they end.
shown() {
	local status=0
	ranks "$@" >"$temporary/out" || status=$?
	cat "$temporary/out"
	return $status
}

# More arguments of gpu-ranks.
flags=()
yields=$temporary/yield.so
cc -O2 -shared -fPIC mpi-tests/yield.c -o "$yields" || cannot "build mpi-tests/yield.c"

# operations COUNT PATH WORDS VARIABLE=VALUE...: all of them; the plan has the words.
operations() {
	local count=$1 path=$2 words=$3
	shift 3
	program=("$programs/gpu-ranks" "${flags[@]}")
	shown "$count" PINYARD_MPI_PATH="$path" PINYARD_MPI_CHUNK_BYTES=8192 "$@" || return 1
	grep -qE "^gpu-ranks: [0-9]{3,4} checks, .*$words" "$temporary/out"
}

# reset COUNT PATH VARIABLE=VALUE...: the last rank's device, under all that uses it.
reset() {
	program=("$programs/gpu-ranks" --reset)
	shown "$1" PINYARD_MPI_PATH="$2" "${@:3}" || return 1
	[ "$(grep -c '^rank [0-9] knows of the reset$' "$temporary/out")" -eq "$1" ]
}

# early COUNT PATH MODE WORDS TIMES VARIABLE=VALUE...: a rank that ends before the first operation. The job fails
# (`late`: it does not), and says the words so many times.
early() {
	local count=$1 path=$2 mode=$3 words=$4 times=$5 status=0
	local go=$temporary/go
	rm -f "$go"
	: >"$temporary/out"
	program=("$programs/gpu-early" "$mode" "$go")
	if [ "$mode" = late ]; then
		# The other ranks end theirs once the words are there, or the check has failed.
		(for _ in {1..600}; do grep -qE "$words" "$temporary/out" && break; sleep 0.1; done; touch "$go") &
	fi
	ranks "$count" PINYARD_MPI_PATH="$path" "${@:6}" >>"$temporary/out" 2>&1 || status=$?
	touch "$go"
	wait
	cat "$temporary/out"
	case $mode in
	late | some) [ "$status" -eq 0 ] || return 1 ;;
	# 124: it hung, and was ended.
	*) [ "$status" -ne 0 ] && [ "$status" -ne 124 ] || return 1 ;;
	esac
	[ "$(grep -oE "$words" "$temporary/out" | wc -l)" -eq "$times" ]
}

# says BY FLAGS...: an MPI that says, by that, what it takes is given device pointers.
says() {
	local by=$1 answers=$temporary/says-$mpi-$1.so also=
	"mpicc.$mpi" -shared -fPIC "${@:2}" mpi-tests/gpu/says.c -o "$answers" || return 1
	[ "$mpi" = mpich ] && also=:$yields
	operations 2 direct "direct: .*MPI takes device pointers, says $by" LD_PRELOAD="$answers$also"
}

# soak COUNT: random operations with memory that comes and goes.
soak() {
	program=("$programs/gpu-ranks" --soak 300)
	shown "$1" PINYARD_MPI_CHUNK_BYTES=65536 || return 1
	grep -q '^soak: 300 rounds' "$temporary/out"
}

# fences LEVEL: blocks that are given up with requests, at that thread level.
fences() {
	program=("$programs/gpu-ranks" --fences "$1")
	shown 2 X=1 || return 1
	[ "$(grep -c "^gpu-ranks: 5 messages, fences with MPI_THREAD_${1^^}\$" "$temporary/out")" -eq 2 ]
}

# apart: ranks that see no process of each other, so that none can map another's memory:
# neither of a device nor of chunks.
apart() {
	# Over TCP it has no one-sided operations.
	program=(unshare -p -f "$programs/gpu-ranks" --no-one-sided)
	shown 3 PINYARD_MPI_CHUNK_BYTES=8192 OMPI_MCA_btl=self,tcp || return 1
	grep -qE "^gpu-ranks: [0-9]{3,4} checks, staged: .*pinned chunks of 8192 bytes of each rank" "$temporary/out"
}

# refuses WORDS VARIABLE=VALUE...: no communicator, and why.
refuses() {
	local words=$1
	shift
	program=("$programs/gpu-ranks")
	if ranks 2 "$@" >"$temporary/out" 2>&1; then
		cat "$temporary/out"
		return 1
	fi
	cat "$temporary/out"
	grep -qE "rank [01]: .*$words" "$temporary/out"
}

# example COUNT NAME: every rank says that its cells are right.
example() {
	local count=$1
	program=("$programs/examples/$2")
	shown "$count" PINYARD_MPI_PATH=auto || return 1
	[ "$(grep -cE '^rank [0-9]+: .* are right' "$temporary/out")" -eq "$count" ]
}

# What each rank's trace has of the example's two broadcasts, for the report's rows.
traced() {
	local folder=$temporary/trace-$mpi
	mkdir -p "$folder"
	program=("$programs/examples/bcast_gpu")
	ranks 2 PINYARD_MPI_PATH=auto PINYARD_TRACE="$folder" || return 1
	python3 - "$folder"/*.trace <<-'END'
		import json, sys
		traces = [[json.loads(line) for line in open(path)] for path in sys.argv[1:]]
		assert sorted(trace[0]["process"]["rank"] for trace in traces) == [0, 1], [trace[0] for trace in traces]
		for trace in traces:
		    calls = [event for event in trace if event.get("event") == "mpi"]
		    told = [(call["name"], call["path"], call["bytes"]) for call in calls]
		    assert told == [("MPI_Bcast", "ipc", 4 << 20), ("MPI_Bcast", "ipc", 2 << 20)], calls
		    assert all(call["took"] > 0 for call in calls), calls
		    assert {"grow", "alloc", "free", "end"} <= {event.get("event") for event in trace}, trace
	END
}

# probe KIND STATUS WORDS: of device pointers that the host may touch, or may not; the
# status and the words that it ends with, and the answer is kept for this user alone.
probe() {
	local kind=$1 status=$2 words=$3 count=0
	program=("$programs/pinyard-mpi-probe" --simulated "$kind" --launch "${launcher[*]}")
	limited 100 "${program[@]}" >"$temporary/out" 2>&1 || count=$?
	cat "$temporary/out"
	[ "$count" -eq "$status" ] && grep -qE "$words" "$temporary/out" &&
		[ "$(stat -c %a "$XDG_CACHE_HOME/pinyard/mpi-device-pointers")" = 600 ] &&
		"$programs/pinyard-mpi-probe" show | grep -qE "$words"
}

# The plan of ranks that are started for it.
planned() {
	"$programs/pinyard-mpi-probe" --plan --simulated --launch "${launcher[*]}" >"$temporary/out" 2>&1 || return 1
	cat "$temporary/out"
	grep -q '^ipc: all ranks are on one node .* 2 ranks on 1 nodes' "$temporary/out"
}

# Without a device nothing is tried, and nothing kept.
unprobed() {
	local status=0
	limited 100 "$programs/pinyard-mpi-probe" --launch "${launcher[*]}" >"$temporary/out" 2>&1 || status=$?
	cat "$temporary/out"
	[ "$status" -eq 2 ] && grep -q 'nothing was tried: rank 0: ' "$temporary/out" && [ ! -e "$XDG_CACHE_HOME/pinyard" ]
}

# cudarc's copies and kernels with ours in between, where there is a device.
with_cudarc() {
	local status=0
	program=("$programs/gpu-cudarc")
	ranks 2 PINYARD_MPI_PATH=auto >"$temporary/out" || status=$?
	cat "$temporary/out"
	[ $status -eq 77 ] && return 77
	[ $status -eq 0 ] && grep -qE '^gpu-cudarc: [0-9]+ lengths by 2 ranks are right' "$temporary/out"
}

table() {
	program=("$programs/gpu-bandwidth" --quick)
	shown 2 PINYARD_MPI_CHUNKS=4 || return 1
	local path
	# Seven sizes of two operations.
	for path in copy-then-mpi staged ipc; do
		[ "$(grep -c "\"path\": \"$path\".*\"ranks\": 2" "$temporary/out")" -eq 14 ] || return 1
	done
	# Eight operations by two paths, those in shares without a size of one byte; and two by as many
	# chunks of as many lengths.
	program=("$programs/gpu-bandwidth" --quick --more)
	ranks 2 X=1 >"$temporary/out" && [ "$(grep -c '^{' "$temporary/out")" -eq 88 ] || return 1
	program=("$programs/gpu-bandwidth" --quick --sweep)
	ranks 2 X=1 >"$temporary/out" && [ "$(grep -c '"chunk_bytes": [0-9]*, "chunks": [248]}' "$temporary/out")" -eq 36 ]
}

more='' # `rest`, for what a second MPI does like the first
for mpi in "$@"; do
	case $mpi in
	openmpi)
		name="Open MPI"
		launcher=(mpirun.openmpi --oversubscribe --bind-to none --mca mpi_yield_when_idle 1
			--mca oob_tcp_if_include lo --mca btl_tcp_if_include lo -n 2)
		;;
	mpich)
		name=MPICH
		launcher=(mpirun.mpich -n 2 -env LD_PRELOAD "$yields")
		;;
	*) echo "no such MPI: $mpi" && exit 2 ;;
	esac
	export MPICC=/usr/bin/mpicc.$mpi
	xtask/ci/build.sh "$mpi" || cannot "build the programs for $name"
	programs=$target/$mpi/release

	for count in 2 3 4; do
		others=''
		[ $count -eq 2 ] || others=$more
		$others check "$name, $count ranks: staged" operations "$count" staged 'staged: asked for'
		$others check "$name, $count ranks: ipc" operations "$count" auto "ipc: .* $count ranks on 1 nodes"
		$others check "$name, $count ranks: the pointer itself" operations "$count" direct 'direct: .*says PINYARD_CUDA_AWARE' PINYARD_CUDA_AWARE=1
	done
	check "$name: it says that it takes device pointers" says MPIX_Query_cuda_support
	check "$name: its kinds of memory have CUDA's" says mpi_memory_alloc_kinds -DKINDS
	check "$name, 2 ranks on nodes of their own" operations 2 auto 'staged: .* 2 ranks on 2 nodes' PINYARD_MPI_RANKS_PER_NODE=1
	$more check "$name, 3 ranks on 2 nodes" operations 3 auto 'ipc\+staged: .* 3 ranks on 2 nodes' PINYARD_MPI_RANKS_PER_NODE=2
	$more check "$name, 4 ranks on 2 nodes" operations 4 auto 'ipc\+staged: .* 4 ranks on 2 nodes' PINYARD_MPI_RANKS_PER_NODE=2
	$more check "$name, 4 ranks on nodes of 3 and 1" operations 4 auto 'ipc\+staged: .* 4 ranks on 2 nodes' PINYARD_MPI_RANKS_PER_NODE=3
	$more check "$name, 4 ranks on nodes of their own" operations 4 auto 'staged: .* 4 ranks on 4 nodes' PINYARD_MPI_RANKS_PER_NODE=1
	$more check "$name, 3 ranks on 2 nodes: the pointer itself" operations 3 auto 'direct: every' PINYARD_CUDA_AWARE=1 PINYARD_MPI_RANKS_PER_NODE=2
	$more check "$name, 3 ranks on 1 node: chunks of the node" operations 3 staged 'pinned chunks of 8192 bytes of each node'
	# The other's UCX refuses to begin there.
	if [ "$mpi" = openmpi ]; then
		if why=$(unshare -p -f true 2>&1); then
			$more check "$name, 3 ranks in PID namespaces of their own" apart
		else
			skip "$name, ranks in PID namespaces of their own: $why"
		fi
	fi
	$more check "$name, 1 rank" operations 1 auto 'staged: there is one rank'
	$more check "$name, 2 ranks, a ring of 2 chunks of 4 KiB" operations 2 staged '2 pinned chunks of 4096' \
		PINYARD_MPI_CHUNKS=2 PINYARD_MPI_CHUNK_BYTES=4096
	$more check "$name: the operations of each rank's trace" traced
	$more check "$name: random operations" soak 2
	$more check "$name: a device that is reset: staged" reset 2 staged
	$more check "$name: a device that is reset: ipc" reset 3 auto
	$more check "$name: a device that is reset: between nodes" reset 3 auto PINYARD_MPI_RANKS_PER_NODE=2
	for path in auto staged; do
		check "$name: a rank whose program fails: $path" early 3 $path run '^rank 2: input file not found$' 1
		check "$name: a rank whose program panics: $path" early 3 $path panic '^rank 2: panicked: the input file is empty$' 1
	done
	check "$name: a rank whose panic's payload panics" early 3 auto bomb '^rank 2: panicked: a panic without a text$' 1
	check "$name: a rank that fails without run: ipc" early 3 ipc plain \
		'(MPI_Bcast|MPI_Allreduce) of device memory: rank 2 ends its communicator|rank 2: input file not found' 5
	$more check "$name: a rank that fails without run, before an Allgatherv: ipc" early 3 ipc parts \
		'MPI_Allgatherv of device memory: rank 2 ends its communicator|rank 2: input file not found' 3
	$more check "$name: run, and a communicator of some ranks after one of all: ipc" early 3 ipc some 'waits for' 0
	$more check "$name: run, and a communicator of some ranks after one of all: between nodes" early 3 auto some 'waits for' 0 \
		PINYARD_MPI_RANKS_PER_NODE=2
	$more check "$name: a rank whose communicator ends before those of others: ipc" early 3 ipc late \
		'rank 2 ends its communicator and waits for ranks 0, 1 to end theirs' 1
	$more check "$name: a rank whose communicator ends before those of others: between nodes" early 3 auto late \
		'rank 2 ends its communicator and waits for the other ranks to end theirs' 1 PINYARD_MPI_RANKS_PER_NODE=2
	$more check "$name: blocks that a request uses, MPI_THREAD_SINGLE" fences single
	$more check "$name: blocks that a request uses, MPI_THREAD_MULTIPLE" fences multiple
	flags=(--no-peers)
	$more check "$name: devices without peer access" operations 2 auto 'staged: rank [01] could not copy from another.s device'
	flags=()
	$more check "$name: refuses the pointer where MPI does not take it" refuses \
		'path direct was asked for, but the MPI of a rank does not take device pointers' PINYARD_MPI_PATH=direct PINYARD_CUDA_AWARE=0
	$more check "$name: refuses ipc between nodes" refuses 'path ipc was asked for, but the ranks are on 2 nodes' \
		PINYARD_MPI_PATH=ipc PINYARD_MPI_RANKS_PER_NODE=1
	$more check "$name: refuses an unknown path" refuses 'PINYARD_MPI_PATH=fast is refused: auto, direct' PINYARD_MPI_PATH=fast
	$more check "$name: refuses an answer that is none" refuses 'PINYARD_CUDA_AWARE=yes is refused: 0 or 1' PINYARD_CUDA_AWARE=yes
	if [ -e /dev/nvidiactl ]; then
		skip "$name: a probe without a device: there is one"
	else
		check "$name: a probe without a device" unprobed
	fi
	check "$name: a probe that ends in MPI" probe device 1 'does not take device pointers: .*MPI_Bcast of 64 bytes ended'
	check "$name: the probe's no is believed" operations 2 auto 'ipc: .*not take device pointers, as pinyard-mpi-probe has tried'
	check "$name: a probe that succeeds" probe host 0 ' takes device pointers: .*messages and collectives of 64 bytes to 4 MiB, and windows'
	check "$name: the probe's yes is believed" operations 2 direct 'direct: .*takes device pointers, as pinyard-mpi-probe'
	# As it would be where MPI_Put alone had failed.
	sed -i 's/^everything/messages/' "$XDG_CACHE_HOME/pinyard/mpi-device-pointers"
	check "$name: the probe's yes without windows" operations 2 direct 'direct: .*takes device pointers, but not in windows'
	# Not over tcp: MPICH 4.0's MPI_Finalize hangs there, one rank in PMI's barrier while the other waits
	# for it to take leave of UCX (2 of 60 runs of a C program that only sends).
	check "$name: of other transports it says nothing" operations 2 auto 'ipc: .*does not take' UCX_TLS=sysv,self
	check "$name: nor of another libfabric's provider" operations 2 auto 'ipc: .*does not take' FI_PROVIDER=tcp
	rm -rf "$XDG_CACHE_HOME"
	check "$name: a plan of ranks that are started for it" planned
	check "$name: example bcast_gpu" example 2 bcast_gpu
	$more check "$name: example allreduce_gpu" example 3 allreduce_gpu
	$more check "$name: example halo_exchange" example 3 halo_exchange
	$more check "$name: the table of bandwidths has its rows" table
	[ "$mpi" = mpich ] || check "$name: buffers between cudarc and MPI" with_cudarc
	more=rest
done

# What needs no ranks.
export MPICC=${MPICC:-/usr/bin/mpicc.openmpi}
own() {
	cargo test --quiet --release --target-dir "$target/${MPICC##*.}" -p pinyard-mpi "$@"
}
check "the crate's own tests" own --lib --test buffers --test probe_help
rest check "the documentation's examples" own --doc --features cudarc

counts
