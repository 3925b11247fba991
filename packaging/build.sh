#!/usr/bin/env bash
# Builds what `make install` installs, into target/package. Installs nothing and needs no
# rights.
#
# libpinyard.so is linked here, of libpinyard.a: rustc hands the linker a version script
# of its own for a cdylib, with an anonymous node, and GNU ld and lld refuse a second one
# beside that. The objects are the same, so both libraries do the same.
set -euo pipefail
cd "$(dirname "$0")/.."
. packaging/common.sh

if ! command -v cargo > /dev/null; then
    # As under sudo, whose PATH may have none.
    [ -e "$package/complete" ] && echo "build: no cargo; what was built before is taken" && exit 0
    fail "no cargo: install Rust 1.89 or newer and put it on PATH, or run make build as the user who has it"
fi
rm -f "$package/complete"
mkdir -p "$package/man"
# Where `make demo` and the tests build as well.
target=${package%/package}
build() { release --target-dir "$target" "$@"; }

# The command's own dependencies make no part of the library: each is built by itself.
build -p pinyard-cli
cp "$target/release/pinyard" "$package/"
# What `pinyard bench` runs; beside UCX where its headers are.
build -p pinyard-benches "${bench_programs[@]/#/--bin=}"
for program in "${bench_programs[@]}"; do cp "$target/release/$program" "$package/"; done
build -p pinyard-preload
cp "$target/release/libpinyard_preload.so" "$package/"
build -p pinyard --lib
cp "$target/release/libpinyard.a" "$package/"

"${CC:-cc}" -shared -o "$package/libpinyard.so.$version" -Wl,-soname,"libpinyard.so.$soname" \
    -Wl,--version-script=packaging/libpinyard.map -Wl,--whole-archive "$package/libpinyard.a" -Wl,--no-whole-archive \
    -Wl,--gc-sections -Wl,--as-needed -Wl,--no-undefined -Wl,-z,relro,-z,now,-z,noexecstack "${system[@]}"

rm -f "$package"/man/*
"$package/pinyard" write-manual "$package/man"
# The tests' installations take the program that checks the book.
build -p pinyard-pages --bin pinyard-book
book=$target/release/pinyard-book
[ "${BUILT_BEFORE:-no}" != yes ] || book=$target/debug/pinyard-book
rm -rf "$html"
"$book" --html "$html"
touch "$package/complete"
