#!/usr/bin/env bash
# Do the pages of `pinyard report` draw a million events, and nothing that a trace should
# not make them draw, in a real browser; and do the book's commands of reports work?
# `xtask/ci/report.sh FOLDER` leaves screenshots there.
set -euo pipefail
cd "$(dirname "$0")/../.."
xtask/ci/build.sh release
built=${CARGO_TARGET_DIR:-target}/release
status=0
cli/tests/book.sh "$built" || status=1
python3 cli/tests/browser.py "$built/pinyard" "$@" || status=1
exit $status
