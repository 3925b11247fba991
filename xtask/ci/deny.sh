#!/usr/bin/env bash
# cargo-deny: may each dependency's licence go with ours, does each come from crates.io, and is one
# of them known to be unsound or withdrawn (deny.toml)?
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
. xtask/ci/checks.sh
said=$(mktemp)
trap 'rm -f "$said" "$said.late"' EXIT
cargo deny --version > /dev/null 2>&1 || cargo install --quiet --locked --debug cargo-deny --version '^0.20' > "$said" 2>&1 ||
    { skip "deny: cargo cannot install cargo-deny" && counts && exit; }
deny() { cargo deny --locked --all-features --log-level warn check "$1"; }
for question in licenses bans sources; do check "$question" deny $question; done
advisories() {
    # The list is a repository of git's.
    cargo deny fetch db || { echo "skipped: the list of advisories cannot be fetched" && return 77; }
    deny advisories
}
check advisories advisories
counts
