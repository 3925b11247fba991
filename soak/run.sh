#!/bin/bash
# The registry under every allocator: linked (C's malloc and Rust's global
# allocator) and preloaded, each told to give pages back at once, judged by bytes
# through io_uring. Every allocator first runs without hooks: that must go wrong,
# or it shows nothing. Ends with "N passed, M failed".
#
#   soak/run.sh [NAME...]      all unless named
#
# $PINYARD_SOAK_SECONDS   a run of each (3); raise it for hours
# $PINYARD_SOAK_PROGRAMS  a folder with the programs, and with mimalloc 3: nothing is built
set -u
cd "$(dirname "$0")/.." || exit 2
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd) || exit 2
seconds=${PINYARD_SOAK_SECONDS:-3}
limit=$((${seconds%.*} + 30))
log=$(mktemp) || exit 2
trap 'rm -f "$log"' EXIT
passed=0 failed=0

programs=${PINYARD_SOAK_PROGRAMS:-$target/release}
[ -n "${PINYARD_SOAK_PROGRAMS:-}" ] || cargo build --quiet --release -p pinyard-soak ||
	{ echo "soak: the programs do not build"; echo "0 passed, 1 failed"; exit 1; }

# Pages go back to the kernel inside the very malloc or free.
export MALLOC_TRIM_THRESHOLD_=0 MALLOC_TOP_PAD_=0 MALLOC_MMAP_THRESHOLD_=131072                # glibc
export MIMALLOC_PAGE_RESET=1 MIMALLOC_RESET_DELAY=0 MIMALLOC_PURGE_DELAY=0                      # mimalloc 2, 3
export MALLOC_CONF=dirty_decay_ms:0,muzzy_decay_ms:0,retain:false                               # jemalloc
export TCMALLOC_AGGRESSIVE_DECOMMIT=1 TCMALLOC_RELEASE_RATE=10000                               # tcmalloc

row() { # name, seconds, control or nothing, command…
	local name=$1 seconds=$2 how=$3 status=0
	shift 3
	timeout -s KILL $limit env "$@" "$seconds" $how >"$log" 2>&1 </dev/null || status=$?
	if [ $status -eq 0 ]; then
		passed=$((passed + 1))
		printf 'ok      %-28s %s\n' "$name" "$(tail -n 1 "$log")"
	else
		failed=$((failed + 1))
		printf 'FAILED  %-28s status %d%s\n' "$name" $status "$([ $status -eq 137 ] && echo ': hangs')"
		tail -n 20 "$log" | sed 's/^/        | /'
	fi
}

both() { # name, command…
	local name=$1
	shift
	row "$name, without hooks" 1 control "$@"
	row "$name" "$seconds" "" "$@"
}

# Debian has no mimalloc 3 to preload: the sources that the linked one is built from
# make a shared library as well.
mimalloc3() {
	local library=$programs/libpinyard-soak-mimalloc3.so sources
	[ -n "${PINYARD_SOAK_PROGRAMS:-}" ] && echo "$library" && return
	sources=$(cargo metadata --format-version 1 --offline --filter-platform "$(rustc -vV | sed -n 's/^host: //p')" | python3 -c '
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
		both "$name preloaded" LD_PRELOAD=$library "$programs/soak-glibc"
		;;
	mimalloc3)
		both "mimalloc3 linked" "$programs/soak-mimalloc3"
		library=$(mimalloc3) || { failed=$((failed + 1)) && echo "FAILED  mimalloc3 preloaded: does not build" && continue; }
		both "mimalloc3 preloaded" LD_PRELOAD="$library" "$programs/soak-glibc"
		;;
	*) echo "soak: no allocator is called $name; there are: ${matrix[*]}" && exit 2 ;;
	esac
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
