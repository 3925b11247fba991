#!/usr/bin/env bash
# Instructions of the hot paths, against the committed numbers
# (benches/instructions.txt): `count_` per 1000 operations under callgrind, `steps_`
# from libc's entry to the system call, by single steps through the patched code. More than 5 % above fails;
# `xtask/ci/instructions.sh --update` writes new ones.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
expected=benches/instructions.txt
xtask/ci/build.sh release
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
said=$out/said
. xtask/ci/checks.sh
update=${1:-} lines=""
counted() { # path, count
    lines+="$1 $2"$'\n'
    [ "$update" = --update ] || check "$1" within_limit "$@"
}
within_limit() {
    local limit
    limit=$(awk -v path="$1" '$1 == path { print int($2 * 1.05) }' "$expected")
    noted="${2:-no} instructions (limit ${limit:-unknown})"
    echo "$noted"
    [ -n "$limit" ] && [ "${2:-0}" -gt 0 ] && [ "$2" -le "$limit" ]
}
for path in $("$target/release/counted" --list); do
    valgrind --tool=callgrind --callgrind-out-file="$out/$path" --collect-atstart=no \
        --toggle-collect="$path" "$target/release/counted" 2> "$out/log" || { cat "$out/log"; exit 1; }
    counted "$path" "$(sed -n 's/^.*Collected : \([0-9]*\).*/\1/p' "$out/log")"
done
limited 60 "$target/release/hook-steps" > "$out/steps" || exit 1
while read -r path count; do counted "$path" "$count"; done < "$out/steps"
if [ "$update" = --update ]; then printf '%s' "$lines" > "$expected" && cat "$expected" && exit; fi
counts
