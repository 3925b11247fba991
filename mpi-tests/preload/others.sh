# shellcheck shell=bash disable=SC2154,SC2034 # of run.sh, which sources this
# Groups of run.sh: what the library leaves to others as it was, and what it finds of theirs.

# UCX and libfabric's memhooks patch the same libc, whatever this library does: where it
# exported libc's names, UCX patched those, and memhooks heard nothing more.
patchers() {
	# shellcheck disable=SC2054 # UCX's own commas
	local plugin=(UCX_TLS=tcp,self,sm "UCP_PLUGIN=$build/libucp_plugin.so") mode
	local program=("$build/client_entries" rounds 100 libc)
	opened() {
		expect "UCX opened indirectly, ${1/UNSET=/on}" 0 'fresh 100 hits 100 stale 0' -- \
			env "${plugin[@]}" "$1" "${with[@]}" "${program[@]}"
	}
	for mode in UNSET= PINYARD_UCX=1; do opened $mode; done
	for mode in PINYARD_PRELOAD=off PINYARD_LIBFABRIC=off PINYARD_UCX=off FI_MR_CACHE_MONITOR=memhooks; do rest opened $mode; done
	rest same_without "the same without UCX, off" PINYARD_PRELOAD=off
	rest same_without "the same without UCX, libfabric off" PINYARD_LIBFABRIC=off
	# A guard of xtask/ci/guards.toml looks for this one.
	same_without "the same without UCX, left alone" FI_MR_CACHE_MONITOR=memhooks
	same_without "UCX opened indirectly, off" PINYARD_PRELOAD=off "${plugin[@]}"
	rest same_without "UCX opened indirectly, both off" PINYARD_LIBFABRIC=off PINYARD_UCX=off "${plugin[@]}"
	rest same_without "UCX opened indirectly, left alone" FI_MR_CACHE_MONITOR=memhooks PINYARD_UCX=off "${plugin[@]}"
}

# A constructor comes to libfabric with the loader's lock: no thread of ours may wait for the
# loader while another waits for that thread.
constructors() {
	local mode
	for mode in PINYARD_PRELOAD=on FI_MR_CACHE_MONITOR=memhooks PINYARD_PRELOAD=off; do
		expect "a constructor that waits for who calls libfabric and UCX, $mode" 0 'waited for 101 answers' -- \
			env $mode "${with[@]}" "$build/constructor" waits
	done
	expect "a constructor that calls libfabric" 0 'opened 4000 times, asked beside' -- "${with[@]}" "$build/constructor" 4000
	expect "a constructor that calls libfabric, left alone" 0 'opened 4000 times, asked beside' -- \
		env FI_MR_CACHE_MONITOR=memhooks "${with[@]}" "$build/constructor" 4000
}

# What the host does to a program ends it no sooner with the preload library than without.
guests() {
	local mode
	for mode in PINYARD_PRELOAD=on FI_MR_CACHE_MONITOR=memhooks PINYARD_PRELOAD=off; do
		expect "a standard error that nobody reads, $mode" 0 completed -- env $mode PINYARD_LOG=info "${with[@]}" "$build/guest" unread
		expect "a cancellation that is pending, $mode" 0 completed -- env $mode "${with[@]}" "$build/guest" cancelled
	done
	for mode in FI_MR_CACHE_MONITOR=memhooks PINYARD_PRELOAD=off; do
		expect "a plugin that is unloaded, $mode" 0 completed -- env $mode "${with[@]}" "$build/guest_host" unloaded "$build/libguest.so"
	done
}

# A provider's file with nothing in it but its start, which stays loaded, under the names that MPIs ship.
providers() {
	local name words=' its cache, if it has one, cannot be reached'
	hides() {
		rm -rf "$build/hidden" && mkdir -p "$build/hidden"
		compile cc "hidden/$1" -shared -fPIC -fvisibility=hidden -Wl,-z,nodelete "$here/provider.c"
		expect "$1 hides its cache: off" 0 'FI_MR_CACHE_MAX_COUNT 0' 'fresh 50 hits 0 stale 0' "hidden/$1:$words" -- \
			env FI_PROVIDER_PATH="$build/hidden" "${with[@]}" "$build/client_entries" rounds 50 number
	}
	for name in libverbs-fi.so libverbs-1.12-fi.so libverbs-1.1-fi.so; do rest hides $name; done
	hides libmlx-fi.so
	ln -sfn "$build" "$out/near"
	expect "found from the working directory: off" 0 'FI_MR_CACHE_MAX_COUNT 0' 'fresh 50 hits 0 stale 0' "near/hidden/libmlx-fi.so:$words" -- \
		env FI_PROVIDER_PATH=near/hidden "${with[@]}" "$build/client_entries" rounds 50 number
	expect "found by LD_LIBRARY_PATH, from there: off" 0 'FI_MR_CACHE_MAX_COUNT 0' 'fresh 50 hits 0 stale 0' "near/hidden/libmlx-fi.so:$words" -- \
		env LD_LIBRARY_PATH=near/hidden "${with[@]}" "$build/client_entries" rounds 50 number
	expect "fi_getparams starts libfabric: off" 0 'FI_MR_CACHE_MAX_COUNT 0' 'fresh 50 hits 0 stale 0' "hidden/libmlx-fi.so:$words" -- \
		env FI_PROVIDER_PATH="$build/hidden" "${with[@]}" "$build/client_entries" asked 50 number
	expect "libfabric started unseen: said, and nothing that is not so" 0 'FI_MR_CACHE_MAX_COUNT not set' \
		'libmlx-fi.so: its cache keeps its own monitor' 'fresh 50 hits 50 stale 0' -- \
		env FI_PROVIDER_PATH="$build/hidden" "${with[@]}" "$build/client_entries" unseen 50 libc
	rest expect "the user's own FI_MR_CACHE_MAX_COUNT" 0 'FI_MR_CACHE_MAX_COUNT 64' 'fresh 50 hits 50 stale 0' -- \
		env FI_MR_CACHE_MAX_COUNT=64 FI_PROVIDER_PATH="$build/hidden" "${with[@]}" "$build/client_entries" rounds 50 number
	expect "a provider that hides its cache, left alone" 0 'FI_MR_CACHE_MAX_COUNT not set' 'fresh 50 hits 50 stale 0' -- \
		env FI_MR_CACHE_MONITOR=memhooks FI_PROVIDER_PATH="$build/hidden" "${with[@]}" "$build/client_entries" rounds 50 libc
	mv "$build/hidden/libmlx-fi.so" "$build/hidden/mlx.so"
	expect "a provider's file of another name: off" 0 'FI_MR_CACHE_MAX_COUNT 0' "hidden/mlx.so:$words" -- \
		env FI_PROVIDER_PATH="+$build/hidden/mlx.so" "${with[@]}" "$build/client_entries" rounds 50 number
	mv "$build/hidden/mlx.so" "$build/hidden/libpsmx2-fi.so"
	expect "a provider that never caches: on" 0 'FI_MR_CACHE_MAX_COUNT not set' 'fresh 50 hits 50 stale 0' -- \
		env FI_PROVIDER_PATH="$build/hidden" "${with[@]}" "$build/client_entries" rounds 50 number
	rm -rf "$build/open" && mkdir -p "$build/open"
	compile cc open/libverbs-1.12-fi.so -shared -fPIC -DOPEN "$here/provider.c"
	expect "a provider with a way to its cache: on" 0 'FI_MR_CACHE_MAX_COUNT not set' 'fresh 50 hits 50 stale 0' -- \
		env FI_PROVIDER_PATH="$build/open" "${with[@]}" "$build/client_entries" rounds 50 number
}

# A fabric is open and pages are pinned, and no cache has asked for the monitor.
unattached() {
	local words='64 KiB are pinned since a fabric was opened, and no cache'
	expect "a monitor that nobody asks: said" 0 "$words" completed -- "${with[@]}" "$build/client" pinned 0
	never "a cache that asks: not said" "$words" 'fresh 10 hits 10 stale 0' "${with[@]}" "$build/client" pinned 10
	rest never "switched off by the user: not said" "$words" completed \
		env FI_MR_CACHE_MAX_COUNT=0 "${with[@]}" "$build/client" pinned 0
	rest never "left alone: not said" "$words" completed \
		env PINYARD_LIBFABRIC=off "${with[@]}" "$build/client" pinned 0
}

never() { # name, what no line has, what one has, command…
	local name=$1 line=$2 pattern=$3
	shift 3
	check "$name" lacks "$line" says 0 "$pattern" -- limited 60 in_out "$@"
}

# Nothing that this library leaves in a process lies closer than 16 bytes to something else.
stubs() {
	local exports
	mapfile -t exports < <(nm -D --defined-only "$preload" | sort | awk '{ print $3 }')
	expect "13 bytes over libc's names" 0 'right 3 of 3' -- \
		env LD_PRELOAD="$preload" "$build/patch13" munmap mremap madvise
	expect "13 bytes over each of its exports" 0 "right ${#exports[@]} of ${#exports[@]}" -- \
		env LD_PRELOAD="$preload" "$build/patch13" "${exports[@]}"
}

# A panic inside the library ends in it, and its unwinder needs no libgcc_s.
panics() {
	mkdir -p "$build/no_providers"
	expect "a panic inside is caught, without libgcc_s" 0 'unexpected error during closedir' 'completed' \
		'libgcc_s not loaded' -- env FI_PROVIDER_PATH="$build/no_providers" \
		LD_PRELOAD="$build/libclosedir.so:$preload:$device" "$build/client_entries" rounds 10 libc
}

# What the program prints, the entries of libc included, is the same without the library.
same_without() { # name, variables…
	local name=$1 program=("$build/client_entries" rounds 100 libc)
	shift
	check "$name: without" kept expected 'munmap libc.so.6' "$@" "${without[@]}" "${program[@]}"
	check "$name: with" kept found '' "$@" "${with[@]}" "${program[@]}"
	check "$name: the same entries" same_entries
}
kept() { # file, pattern, command of env…
	says 0 'fresh 100 hits 100 stale 0' "$2" -- limited 60 in_out env "${@:3}" && sed '/^pinyard: /d' "$said.says" >"$out/$1"
}
same_entries() {
	diff "$out/expected" "$out/found" || return
	noted="$(grep -c ' in libc:' "$out/expected") of libc"
}
