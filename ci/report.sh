#!/usr/bin/env bash
# Do the pages of `pinyard report` draw a million events, and nothing that a trace should
# not make them draw, in a real browser; and do the book's commands of reports work?
# `ci/report.sh FOLDER` leaves screenshots there.
set -euo pipefail
cd "$(dirname "$0")/.."
ci/build.sh release
built=${CARGO_TARGET_DIR:-target}/release
status=0
trace/report/tests/book.sh "$built" || status=1
python3 trace/report/tests/browser.py "$built/pinyard" "$@" || status=1
exit $status
