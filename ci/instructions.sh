#!/usr/bin/env bash
# Instructions of the hot paths, against the committed numbers
# (benches/instructions.txt): `count_` per 1000 operations under callgrind, `steps_`
# from libc's entry to the system call, by single steps through the patched code. More than 5 % above fails;
# `ci/instructions.sh --update` writes new ones.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
expected=benches/instructions.txt
cargo build --quiet --release -p pinyard-benches --bin counted --bin hook-steps
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
update=${1:-}
passed=0 failed=0 lines=""
check() { # path, count
    local path=$1 count=$2 limit
    lines+="$path $count"$'\n'
    if [ "$update" = --update ]; then return; fi
    limit=$(awk -v path="$path" '$1 == path { print int($2 * 1.05) }' "$expected")
    if [ -n "$limit" ] && [ "${count:-0}" -gt 0 ] && [ "$count" -le "$limit" ]; then
        passed=$((passed + 1)) && echo "$path: $count instructions (limit $limit)"
    else
        failed=$((failed + 1)) && echo "$path: ${count:-none} instructions, limit ${limit:-unknown}: FAILED"
    fi
}
for path in $("$target/release/counted" --list); do
    valgrind --tool=callgrind --callgrind-out-file="$out/$path" --collect-atstart=no \
        --toggle-collect="$path" "$target/release/counted" 2> "$out/log" || { cat "$out/log"; exit 1; }
    check "$path" "$(sed -n 's/^.*Collected : \([0-9]*\).*/\1/p' "$out/log")"
done
timeout 60 "$target/release/hook-steps" > "$out/steps" || exit 1
while read -r path count; do check "$path" "$count"; done < "$out/steps"
if [ "$update" = --update ]; then printf '%s' "$lines" > "$expected" && cat "$expected" && exit; fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
