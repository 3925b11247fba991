#!/usr/bin/env bash
# Does libpinyard.so export what src/include/pinyard.h declares and nothing else, under the
# name that programs look for, needing no library but the system's own? And is all of it
# in libpinyard.a, and listed with a version in packaging/libpinyard.map? Do C++ and
# Fortran have every function, and does a fuzz target call it? Does the preload library
# stand before what it must and nothing else?
set -euo pipefail
cd "$(dirname "$0")/../.."
xtask/ci/build.sh debug
library=${CARGO_TARGET_DIR:-target}/debug
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
said=$work/said
. xtask/ci/checks.sh
# same WHAT EXPECTED FOUND: < expected, > found.
same() { check "$1" differ_not "$2" "$3"; }
differ_not() { diff <(echo "$1") <(echo "$2"); }
declared=$(gcc -fpreprocessed -dD -E src/include/pinyard.h 2> /dev/null | grep -oE '\bpny_[a-z_]+\(' | tr -d '(' | sort -u)
same "functions in packaging/libpinyard.map" "$declared" "$(sed -n 's/^\t\(pny_[a-z_]*\);$/\1/p' packaging/libpinyard.map | sort)"
same "functions bound in src/include/pinyard.f90" "$declared" "$(sed -nE 's/.*bind\(c, name="(pny_[a-z_]+)"\).*/\1/p' src/include/pinyard.f90 | sort)"
# Other libraries are given these, by name.
given=$(grep -vE '^pny_(torch|cupy)_' <<< "$declared")
same "functions that src/include/pinyard.hpp calls" "$given" "$(gcc -x c++ -fpreprocessed -dD -E src/include/pinyard.hpp 2> /dev/null | grep -oE '\bpny_[a-z_]+\(' | tr -d '(' | sort -u)"
same "exports of libpinyard.so" "$declared" "$(nm -D --defined-only "$library/libpinyard.so" | awk '{ print $3 }' | sort)"
same "functions in libpinyard.a" "$declared" "$(nm --defined-only "$library/libpinyard.a" 2> /dev/null | awk '$2 == "T" && $3 ~ /^pny_/ { print $3 }' | sort)"
same "soname" libpinyard.so.0 "$(readelf -d "$library/libpinyard.so" | sed -n 's/.*soname: \[\(.*\)\]/\1/p')"
# Whoever has glibc has these: no MPI, no CUDA, no libfabric, no verbs.
needed=$(readelf -d "$library/libpinyard.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort)
same "libraries that it needs" "" "$(echo "$needed" | grep -vE '^(libc|libm|libdl|libpthread|libgcc_s|ld-linux-[a-z0-9_-]+)\.so\.[0-9]$' || true)"
# Of libpinyard_mpi, whose library mpi-tests/c/mpi.sh looks at.
mpi=$(gcc -fpreprocessed -dD -E src/include/pinyard_mpi.h 2> /dev/null | grep -oE '\bpny_[a-z_]+\(' | tr -d '(' | sort -u)
same "functions in packaging/libpinyard_mpi.map" "$mpi" "$(sed -n 's/^\t\(pny_[a-z_]*\);$/\1/p' packaging/libpinyard_mpi.map | sort)"
same "names of pinyard_mpi.h that are not pny_mpi_" "" "$(grep -v '^pny_mpi_' <<< "$mpi" || true)"
# What an earlier release had stays: programs were linked with it.
had() { gcc -fpreprocessed -dD -E "$@" 2> /dev/null | grep -oE '\bpny_[a-z_]+\(' | tr -d '(' | sort -u; }
for former in mpi-tests/c/previous/{,*/}pinyard.h; do
    same "functions of $former that are gone" "" "$(comm -23 <(had "$former") <(echo "$declared"))"
done
for former in mpi-tests/c/previous/*/pinyard_mpi.h; do
    [ ! -e "$former" ] || same "functions of $former that are gone" "" "$(comm -23 <(had "$former") <(echo "$mpi"))"
done
# Calls in the targets' sources; declarations and comments are none.
called() { sed -E 's|//.*||; s/\bfn pny_[a-z_]+\(//' "$@" | grep -oE '\bpny_[a-z_]+\(' | tr -d '(' | sort -u; }
same "functions of pinyard.h that no fuzz target calls" "" "$(comm -23 <(echo "$declared") <(called mpi-tests/fuzz/src/capi/*.rs))"
same "functions of pinyard_mpi.h that no fuzz target calls" "" "$(comm -23 <(echo "$mpi") <(called mpi-tests/fuzz/mpi/src/*.rs))"
# libfabric's and UCX's ways in.
before="fi_fabric fi_fabric2 fi_getinfo fi_getparams fi_open
    ucm_set_event_handler ucm_unset_event_handler ucs_rcache_create ucs_rcache_get"
exports() { nm -D --defined-only "$1" | awk '{ sub(/@.*/, "", $3); print $3 }' | LC_ALL=C sort -u; }
same "exports of libpinyard_preload.so" "$(xargs -n 1 <<< "$before")" "$(exports "$library/libpinyard_preload.so")"
# An image without libgcc_s starts with it preloaded.
same "libraries that libpinyard_preload.so needs" "" "$(readelf -d "$library/libpinyard_preload.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(libc|libm|libdl|libpthread|ld-linux-[a-z0-9_-]+)\.so\.[0-9]$' || true)"
# A patcher writes up to 13 bytes over an entry.
same "exports of libpinyard_preload.so that are not 16-byte aligned" "" "$(nm -D --defined-only "$library/libpinyard_preload.so" | grep -v '^[0-9a-f]*0 ' || true)"
# A patcher that finds an export under libc's name patches that, and another patches libc's.
libc=$(ldd "$library/libpinyard_preload.so" | awk '$1 == "libc.so.6" { print $3 }')
for shipped in libpinyard.so libpinyard_preload.so; do
    same "names of libc's that $shipped exports" "" "$(LC_ALL=C comm -12 <(exports "$library/$shipped") <(exports "$libc"))"
done
# A relocation in code would be one that hardened systems refuse.
same "relocations in its code" "" "$(readelf -d "$library/libpinyard.so" | grep -o TEXTREL | head -1 || true)"
echo "$(wc -l <<< "$declared") functions, and $(wc -l <<< "$mpi") of pinyard_mpi.h"
counts
