#!/usr/bin/env bash
# Builds the book into docs/book and checks that every link between its pages,
# and every test that the invariants name, exists.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo run --quiet --release -p pinyard-book
