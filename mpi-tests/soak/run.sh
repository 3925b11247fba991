#!/bin/bash
# The registry under every allocator: linked (C's malloc and Rust's global
# allocator) and preloaded, each told to give pages back at once, judged by bytes
# through io_uring. Every allocator first runs without hooks: that must go wrong,
# or it shows nothing.
#
#   mpi-tests/soak/run.sh [NAME...]      all unless named; QUICK=1: a tenth of the rounds
#
# $PINYARD_SOAK_SECONDS   a run of each, in place of a number of rounds; for hours
# $PINYARD_SOAK_PROGRAMS  a folder with the programs, and with mimalloc 3: nothing is built
set -u
cd "$(dirname "$0")/../.." || exit 2
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd) || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
said=$work/said
. xtask/ci/checks.sh

# Rounds of each of two threads, or seconds with an s. Without hooks a run ends with what is stale.
amount=6000 control=200000 limit=300
! quick || amount=$((amount / 10))
if [ -n "${PINYARD_SOAK_SECONDS:-}" ]; then
	amount=${PINYARD_SOAK_SECONDS}s limit=$((${PINYARD_SOAK_SECONDS%.*} + 300))
fi

programs=${PINYARD_SOAK_PROGRAMS:-$target/release}
[ -n "${PINYARD_SOAK_PROGRAMS:-}" ] || xtask/ci/build.sh release ||
	cannot "build the programs"

# Pages go back to the kernel inside the very malloc or free.
export MALLOC_TRIM_THRESHOLD_=0 MALLOC_TOP_PAD_=0 MALLOC_MMAP_THRESHOLD_=131072                # glibc
export MIMALLOC_PAGE_RESET=1 MIMALLOC_RESET_DELAY=0 MIMALLOC_PURGE_DELAY=0                      # mimalloc 2, 3
export MALLOC_CONF=dirty_decay_ms:0,muzzy_decay_ms:0,retain:false                               # jemalloc
export TCMALLOC_AGGRESSIVE_DECOMMIT=1 TCMALLOC_RELEASE_RATE=10000                               # tcmalloc

row() { # rounds or seconds, `control` or nothing, command…
	local amount=$1 how=$2
	shift 2
	limited $limit env "$@" "$amount" ${how:+"$how"} >"$work/log" 2>&1 || { cat "$work/log" && return 1; }
	noted=$(tail -n 1 "$work/log")
}

both() { # name, command…
	local name=$1
	shift
	check "$name, without hooks" row $control control "$@"
	check "$name" row "$amount" "" "$@"
}

# Debian has no mimalloc 3 to preload: the sources that the linked one is built from
# make a shared library as well.
mimalloc3() {
	local library=$programs/libpinyard-soak-mimalloc3.so sources
	[ -n "${PINYARD_SOAK_PROGRAMS:-}" ] && echo "$library" && return
	sources=$(cargo metadata --format-version 1 --features pinyard-mpi-tests/soak --offline --filter-platform "$(rustc -vV | sed -n 's/^host: //p')" | python3 -c '
import json, os, sys
packages = json.load(sys.stdin)["packages"]
manifests = [package["manifest_path"] for package in packages if package["name"] == "libmimalloc-sys"]
print(os.path.join(os.path.dirname(manifests[0]), "c_src/mimalloc/v3"))') || return
	cc -O2 -shared -fPIC -fvisibility=hidden -ftls-model=initial-exec -fno-builtin-malloc \
		-DNDEBUG -DMI_MALLOC_OVERRIDE -DMI_SHARED_LIB -DMI_SHARED_LIB_EXPORT \
		-I "$sources/include" "$sources/src/static.c" -o "$library" -lpthread >&2 || return
	echo "$library"
}

matrix=(glibc mimalloc2 mimalloc3 jemalloc tcmalloc)
[ $# -gt 0 ] || set -- "${matrix[@]}"
for name in "$@"; do
	case $name in
	glibc) both glibc "$programs/soak-glibc" ;;
	mimalloc2) library=libmimalloc.so.2 ;;&
	jemalloc) library=libjemalloc.so.2 ;;&
	tcmalloc) library=libtcmalloc_minimal.so.4 ;;&
	mimalloc2 | jemalloc | tcmalloc)
		both "$name linked" "$programs/soak-$name"
		both "$name preloaded" LD_PRELOAD="$library" "$programs/soak-glibc"
		;;
	mimalloc3)
		both "mimalloc3 linked" "$programs/soak-mimalloc3"
		library=$(mimalloc3) || cannot "build mimalloc 3 as a library"
		both "mimalloc3 preloaded" LD_PRELOAD="$library" "$programs/soak-glibc"
		;;
	*) echo "soak: no allocator is called $name; there are: ${matrix[*]}" && exit 2 ;;
	esac
done
counts
