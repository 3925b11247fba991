#!/usr/bin/env bash
# cargo-mutants on the lines that a change touches: does some test notice each mistake that is made
# there on purpose? At most $MOST (12) of them, drawn by the commit's hash. A mutant that nobody
# notices is a test that is missing, or stands with its reason in .cargo/mutants.toml.
#
#   BASE=main xtask/ci/mutants.sh     lines that differ from BASE; ten commits back without
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
. xtask/ci/checks.sh
said=$(mktemp) change=$(mktemp)
trap 'rm -f "$said" "$said.late" "$change"' EXIT
most=${MOST:-12} base=${BASE:-}
[ -n "$base" ] || base=$(git rev-parse --verify --quiet HEAD~10) || base=$(git rev-list --max-parents=0 HEAD | tail -n 1)
# The layers whose tests need no MPI, on this machine's processor.
packages=(pinyard-hooks pinyard-worker pinyard-registry pinyard-trace pinyard-driver pinyard-allocator)
git diff "$base" -- hooks registry allocator > "$change"
if [ ! -s "$change" ]; then
    skip "mutants: no line of the layers differs from $base" && counts && exit
fi
cargo mutants --version > /dev/null 2>&1 || cargo install --quiet --locked --debug cargo-mutants --version '^27' > "$said" 2>&1 ||
    { skip "mutants: cargo cannot install cargo-mutants" && counts && exit; }
out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/mutants
mkdir -p "$out"
ours=(--in-diff "$change" "${packages[@]/#/--package=}" --output "$out")
all=$(cargo mutants "${ours[@]}" --list | wc -l)
parts=$(((all + most - 1) / most))
[ "$all" -gt 0 ] || { skip "mutants: nothing to change in the lines that differ from $base" && counts && exit; }
part=$((16#$(git rev-parse HEAD | cut -c1-8) % parts))
echo "$all mutants of the lines that differ from $base; part $((part + 1)) of $parts"
# Whoever changes hooks runs the registry's tests as well.
cargo mutants "${ours[@]}" --shard "$part/$parts" --jobs 1 --test-tool nextest --timeout 300 --no-shuffle \
    --test-package pinyard-hooks,pinyard-registry,pinyard-allocator --baseline run > "$said" 2>&1
status=$?
tail -n 30 "$said"
noticed() { # file, mutant
    ! grep -qxF "$1" "$out/mutants.out/missed.txt"
}
while read -r mutant; do check "$mutant" noticed "$mutant"; done < <(cat "$out/mutants.out/caught.txt" "$out/mutants.out/missed.txt" "$out/mutants.out/timeout.txt" 2> /dev/null)
[ -n "$(cat "$out"/mutants.out/{caught,missed,timeout}.txt 2> /dev/null)" ] || skip "mutants: none of those drawn compiles"
[ $status -eq 0 ] || [ $status -eq 2 ] || [ $status -eq 3 ] || failed=$((failed + 1))
counts
