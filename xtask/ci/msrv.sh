#!/usr/bin/env bash
# Does the workspace compile with the Rust that Cargo.toml names (`rust-version`)?
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
. xtask/ci/checks.sh
said=$(mktemp)
trap 'rm -f "$said" "$said.late"' EXIT
named=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
[ -n "$named" ] || cannot "find rust-version in Cargo.toml"
# A version of two numbers is the newest of its series: 1.89 is 1.89.0.
has() { rustc "+$named" --version 2> /dev/null | grep -qF "rustc $named"; }
has || rustup toolchain install "$named" --profile minimal > "$said" 2>&1
has || { skip "rustup cannot install Rust $named" && counts && exit; }
export MPICC=${MPICC:-/usr/bin/mpicc.openmpi}
check "the workspace compiles with Rust $named" \
    cargo "+$named" check --quiet --locked --workspace --all-targets --all-features --target-dir "${CARGO_TARGET_DIR:-target}/msrv"
# What users are told to have.
for file in README.md xtask/ci/deps.sh docs/src/start.md docs/src/install.md; do
    check "$file asks for Rust $named" grep -qF "Rust $named" "$file"
done
counts
