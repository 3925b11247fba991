#!/usr/bin/env bash
# Collects the benchmark and the libraries that it needs in carried/, which git
# ignores and which stays below 64 MiB, for a machine without Rust and without UCX and libfabric.
# The C library, its loader and its kin stay behind: they are that machine's own.
set -euo pipefail
cd "$(dirname "$0")/../../.."
target=${CARGO_TARGET_DIR:-target}
out=carried
cargo build --quiet --release -p pinyard-benches
rm -rf "$out" && mkdir -p "$out/lib"
cp "$target"/release/pinyard-bench{,-watched} "$out/"
MPICC=${MPICC:-/usr/bin/mpicc.openmpi} cargo build --quiet --release -p pinyard-cli
cp "$target/release/pinyard" "$out/"
for test in flips forks; do
    built=$(cargo test --quiet --release --no-run --message-format json -p pinyard-hooks --test "$test" |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1)
    cp "$built" "$out/$test"
done
strip --strip-debug "$out"/{pinyard-bench,pinyard-bench-watched,pinyard,flips,forks}

library() { ldconfig -p | awk -v name="$1" '$1 == name && /x86-64/ { print $NF; exit }'; }
carry() {
    local path name
    for path in "$@"; do
        name=$(basename "$path")
        case $name in libc.so.* | ld-linux* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.*) continue ;; esac
        [ -e "$out/lib/$name" ] && continue
        cp -L "$path" "$out/lib/$name"
        mapfile -t needed < <(ldd "$path" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }')
        carry "${needed[@]}"
    done
}
carry "$(library libgcc_s.so.1)"
for name in libucs.so.0 libucm.so.0 libucp.so.0 libfabric.so.1; do
    path=$(library "$name")
    if [ -z "$path" ]; then
        echo "carry: no $name here: ours will be measured alone" >&2
        continue
    fi
    carry "$path"
done
kib=$(du -sk "$out" | cut -f1)
if [ "$kib" -ge 65536 ]; then
    echo "carry: $out has $kib KiB, and 65536 are too many" >&2
    exit 1
fi
echo "carry: $out, $kib KiB"
