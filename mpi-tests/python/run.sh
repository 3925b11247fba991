#!/usr/bin/env bash
# The entry points for Python's GPU libraries: called by ctypes on the simulated device,
# and by the examples where the libraries and a GPU are. `run.sh [libpinyard.so]`.
set -uo pipefail
cd "$(dirname "$0")/../.."
library=${1:-}
if [ -z "$library" ]; then
    cargo build --quiet -p pinyard || exit 1
    library=${CARGO_TARGET_DIR:-target}/debug/libpinyard.so
fi
library=$(readlink -f "$library")
passed=0 failed=0 skipped=0
# Its own last line counts; without one it did not get there.
output=$(timeout 60 python3 mpi-tests/python/plug.py "$library" 2> /dev/null)
status=$?
sed '$d' <<< "$output"
if [[ ${output##*$'\n'} =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
    passed=${BASH_REMATCH[1]} failed=${BASH_REMATCH[2]}
    [ $status -eq 0 ] || [ "$failed" -gt 0 ] || { failed=1 && echo "plug.py: ended with status $status"; }
else
    failed=1 && echo "plug.py: ended with status $status"
fi
example() { # NAME COMMAND...
    local name=$1 said status
    shift
    said=$(timeout 300 "$@" 2>&1)
    status=$?
    case $status in
        0) passed=$((passed + 1)) && echo "$name: ok: ${said##*$'\n'}" ;;
        77) skipped=$((skipped + 1)) && echo "skipped: $name: ${said:-its library is not installed}" ;;
        *) failed=$((failed + 1)) && echo "$name: FAILED with status $status" && echo "$said" ;;
    esac
}
example page.sh mpi-tests/python/page.sh "$library"
example torch_train.py python3 examples/python/torch_train.py pinyard --library "$library" --steps 30
for each in torch_mempool cupy_pool rmm_callback; do
    example $each.py python3 examples/python/$each.py "$library"
done
# What is not run here is Python at least.
for each in examples/python/*.py; do
    if python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$each"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
