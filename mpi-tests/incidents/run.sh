#!/bin/bash
# Runs the incidents: each hang first, with the libraries as they are shipped,
# then the same program with pinyard's monitor. See README.md.
#
# usage: run.sh [CARGO_PROFILE]      (default: dev)
#
# $OUT  where the outputs of the cases are kept (default: a new directory in
#       ${TMPDIR:-/tmp}, which is named at the end)
set -euo pipefail

readonly profile=${1:-dev}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
target=$(mkdir -p "${CARGO_TARGET_DIR:-$root/target}" && cd "${CARGO_TARGET_DIR:-$root/target}" && pwd)
readonly here root target
readonly build=$target/incidents
readonly out=${OUT:-$(mktemp -d "${TMPDIR:-/tmp}/pinyard-incidents.XXXXXX")}
readonly limit=120 # seconds a case; the programs' own watchdog bites after 5
readonly hang=42

mkdir -p "$build" "$out"
said=$out/said
. "$root/xtask/ci/checks.sh"

# ---- What is needed ---------------------------------------------------------

need_command() { # command, Debian package
	command -v "$1" >/dev/null || cannot "find $1: apt-get install $2"
}

need_header() { # header, Debian package
	echo "#include <$1>" | cc -E -x c - >/dev/null 2>&1 || cannot "find $1: apt-get install $2"
}

need_command cc gcc
need_command cargo "rustc cargo, or rustup"
need_command mpicc.openmpi libopenmpi-dev
need_command mpirun.openmpi openmpi-bin
need_command pkg-config pkg-config
need_header rdma/fi_ext.h libfabric-dev
need_header infiniband/verbs.h libibverbs-dev
need_header rdma/rdma_cma.h librdmacm-dev
libfabric=$(pkg-config --modversion libfabric) || cannot "find libfabric.pc: apt-get install libfabric-dev"

# ---- Building ---------------------------------------------------------------

case $profile in
dev) "$root/xtask/ci/build.sh" debug ;;
*) (cd "$root" && cargo build --quiet --package pinyard --lib --profile "$profile") ;;
esac || cannot "build libpinyard.so"
case $profile in
dev | test) pinyard=$target/debug/libpinyard.so ;;
bench) pinyard=$target/release/libpinyard.so ;;
*) pinyard=$target/$profile/libpinyard.so ;;
esac
[ -f "$pinyard" ] || cannot "find $pinyard, which cargo built"
# The name that programs look for.
ln -sf "${pinyard##*/}" "$pinyard.0"

readonly flags=(-std=gnu11 -O1 -g -Wall -Wextra -Werror -I "$root/src/include" -I "$here")
readonly with_pinyard=(-L "${pinyard%/*}" "-Wl,-rpath,${pinyard%/*}" -lpinyard)

compile() { # compiler, output, arguments…
	local compiler=$1 output=$2
	shift 2
	"$compiler" "${flags[@]}" -o "$build/$output" "$@" || cannot "compile $output"
}

cd "$here"
compile cc libfakeverbs.so -shared -fPIC stand_in/fakeverbs.c
# -rdynamic: the stack that the watchdog prints has our functions' names.
compile mpicc.openmpi ompi_13149_madvise_in_malloc -rdynamic ompi_13149_madvise_in_malloc.c incident.c -lfabric
compile cc libfabric_10879_memhooks -rdynamic libfabric_10879_memhooks.c incident.c -lfabric
compile cc import_refusals -rdynamic import_refusals.c incident.c "${with_pinyard[@]}" -lfabric
compile cc import_absent import_absent.c "${with_pinyard[@]}"

# ---- Running ----------------------------------------------------------------

# What an operator may have set for libfabric and Open MPI is not for here.
for name in $(compgen -e | grep -E '^(FI_|OMPI_MCA_|LD_PRELOAD$)' || true); do
	unset "$name"
done
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export FI_TCP_IFACE=lo

under_mpi() { # program, arguments…
	# cm over ofi: what imports Open MPI's monitor into libfabric. Ranks give way
	# while they wait: the cores are not ours alone.
	mpirun.openmpi --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --tag-output -n 2 \
		--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'tcp;ofi_rxm' \
		--mca oob_tcp_if_include lo \
		-x FI_TCP_IFACE -x LD_PRELOAD="$build/libfakeverbs.so" "$@"
}

alone() { # program, arguments…
	LD_PRELOAD=$build/libfakeverbs.so "$@"
}

# Runs a command under the limit; output in $out/NAME.txt, status in $status.
run() { # name, command…
	local name=$1
	shift
	status=0
	limited "$limit" "$@" >"$out/$name.txt" 2>&1 || status=$?
	cat "$out/$name.txt"
}

# The watchdog's stack of the first process that printed a whole one, innermost
# frame first, as `object(function) <- object(function) …`.
stack() { # output
	sed -E 's/^\[1,([0-9]+)\]<std(err|out)>:/\1 /; t; s/^/0 /' "$1" | awk '
		/watchdog: hang/         { stack[$1] = ""; on[$1] = 1; next }
		/watchdog: end of stack/ { print stack[$1]; exit }
		on[$1] {
			frame = $2
			sub(/\[0x[0-9a-f]*\]$/, "", frame); sub(/^.*\//, "", frame)
			sub(/\+0x[0-9a-f]*\)/, ")", frame)
			stack[$1] = stack[$1] (stack[$1] == "" ? "" : " <- ") frame
		}'
}

readonly lock='libc\.so\.6\(pthread_mutex_lock\)'
readonly fabric='libfabric\.so\.1\(\)'
readonly opal='libopen-pal\.so\.[0-9]+\(opal_mem_hooks_release_hook\)( <- libopen-pal\.so\.[0-9]+\([a-z_]*\))*'
readonly allocator='[a-z0-9_]+\(release_pages\) <- [a-z0-9_]+\((malloc|calloc|realloc|free)\)'

# The naive run must hang, and in the cycle that is meant.
must_hang() { check "$1" hangs "$@"; }
hangs() { # name, chain, command…
	local name=$1 chain=$2 found
	shift 2
	if [ "$(printf '2.6\n%s\n' "$libfabric" | sort -V | head -n 1)" = 2.6 ]; then
		echo "libfabric $libfabric has the upstream fix (2.6.0)"
		return 77
	fi
	run "$name" "$@"
	found=$(stack "$out/$name.txt")
	echo "stack: $found" | tee -a "$out/$name.txt"
	[ "$status" -eq "$hang" ] || { noted="exit status $status, expected the watchdog's $hang" && return 1; }
	[[ $found =~ $chain ]] || { noted="hangs, but not in the chain $chain" && return 1; }
	noted="hangs, as it does without pinyard: ${BASH_REMATCH[0]}"
}

must_complete() { check "$1" completes "$@"; }
completes() { # name, lines with "completed" expected, command…
	local name=$1 lines=$2 completed
	shift 2
	run "$name" "$@"
	completed=$(grep -c completed "$out/$name.txt" || true)
	[ "$status" -eq 0 ] || { noted="exit status $status" && return 1; }
	[ "$completed" -eq "$lines" ] || { noted="$completed of $lines processes completed" && return 1; }
	noted=$(grep -m 1 -o 'monitor: .*' "$out/$name.txt" || echo completes)
}

echo "libfabric $libfabric, $(mpirun.openmpi --version | head -n 1), pinyard $profile"

readonly memhooks=$build/libfabric_10879_memhooks
must_complete libfabric_10879_control 1 alone "$memhooks" control
must_hang libfabric_10879_naive "$lock <- ($fabric <- )+$allocator <- $fabric" alone "$memhooks" naive
must_complete libfabric_10879_pinyard 1 alone "$memhooks" pinyard "$pinyard"

readonly ompi=$build/ompi_13149_madvise_in_malloc
must_complete ompi_13149_control 2 under_mpi "$ompi" control
must_hang ompi_13149_naive "$lock <- ($fabric <- )+$opal <- $allocator <- $fabric" under_mpi "$ompi" naive
must_complete ompi_13149_pinyard 2 under_mpi "$ompi" pinyard "$pinyard"

must_complete import_order 1 "$build/import_refusals" order
must_complete import_late 1 alone "$build/import_refusals" late
must_complete import_monitor_chosen 1 "$build/import_refusals" chosen
mkdir -p "$build/no_library"
echo "not a library" >"$build/no_library/libfabric.so.1"
must_complete import_absent 1 env LD_LIBRARY_PATH="$build/no_library" "$build/import_absent"

echo "outputs: $out"
counts
