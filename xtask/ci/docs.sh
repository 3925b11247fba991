#!/usr/bin/env bash
# Builds the book into docs/book and checks that every link between its pages,
# and every test that the invariants name, exists.
set -euo pipefail
cd "$(dirname "$0")/../.."
if grep -nE '@[A-Z]+@' README.md docs/src/*.md; then echo 'book: placeholders are left' >&2; exit 1; fi
xtask/ci/build.sh debug
"${CARGO_TARGET_DIR:-target}/debug/pinyard-book"
