#!/usr/bin/env bash
# `packaging/strip.sh PREFIX LIBDIR`: takes symbols that nobody needs out of what was installed there,
# for packages.
set -euo pipefail
cd "$(dirname "$0")/.."
. packaging/common.sh
[ $# -eq 2 ] || fail "usage: packaging/strip.sh PREFIX LIBDIR"
lib=$1/$2
strip --strip-unneeded --remove-section=.comment "$lib/libpinyard.so.$version" "$lib/libpinyard_preload.so"
# valgrind counts in functions by their names.
strip --wildcard --keep-symbol='count_*' "$1/bin/pinyard" "$1"/libexec/pinyard/*
strip --strip-debug --enable-deterministic-archives "$lib/libpinyard.a"
