#!/usr/bin/env bash
# Is include/pinyard.h the one that src/capi makes? `ci/header.sh --update` writes it.
set -euo pipefail
cd "$(dirname "$0")/.."
check=(--check)
[ "${1:-}" = --update ] && check=()
cargo run --quiet -p pinyard-header -- "${check[@]}"
