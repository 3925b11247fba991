#!/usr/bin/env bash
# The entry points for Python's GPU libraries: called by ctypes on the simulated device,
# and by the examples where the libraries and a GPU are. `run.sh [libpinyard.so]`.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
library=${1:-}
if [ -z "$library" ]; then
    xtask/ci/build.sh debug || exit 1
    library=${CARGO_TARGET_DIR:-target}/debug/libpinyard.so
fi
library=$(readlink -f "$library")
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
said=$work/said
. xtask/ci/checks.sh

# Its own last line counts; without one, or with another status, it did not get there.
status=0
limited 60 python3 mpi-tests/python/plug.py "$library" > "$work/plug" 2> /dev/null < /dev/null || status=$?
sed '$d' "$work/plug"
stops() { echo "status $status, and its last line is: $(tail -n 1 "$work/plug")" && return 1; }
if ! include "$(tail -n 1 "$work/plug")" || { [ $status -ne 0 ] && [ "$failed" -eq 0 ]; }; then
    check "plug.py comes to its end" stops
fi

example() { # COMMAND...: 77 without a word is a library that is not there
    local status=0
    limited 300 "$@" > "$work/example" 2>&1 || status=$?
    [ $status -ne 77 ] || [ -s "$work/example" ] || echo "its library is not installed" > "$work/example"
    cat "$work/example"
    noted=$(tail -n 1 "$work/example")
    return $status
}
check page.sh example mpi-tests/python/page.sh "$library"
check torch_train.py example python3 examples/python/torch_train.py pinyard --library "$library" --steps 30
for each in torch_mempool cupy_pool rmm_callback; do
    check $each.py example python3 examples/python/$each.py "$library"
done
# What is not run here is Python at least.
for each in examples/python/*.py; do
    check "$each is Python" python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$each"
done
counts
