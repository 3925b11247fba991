#!/usr/bin/env bash
# Are src/include/pinyard.h and the manual's page pinyard(3) the ones that src/capi makes?
# `xtask/ci/header.sh --update` writes them.
set -euo pipefail
cd "$(dirname "$0")/../.."
check=(--check)
[ "${1:-}" = --update ] && check=()
cargo run --quiet -p pinyard-pages --no-default-features --features header --bin pinyard-header -- "${check[@]}"
