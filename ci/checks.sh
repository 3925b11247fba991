# shellcheck shell=bash
# For the scripts that make many checks, which read it in: counts them, shows what a failed
# one said, and ends with the line that ci/test.sh adds up.
#
#   said=FILE       where a check's words are, until the next one
#   only=PATTERN    only the checks whose names have it are made; none of the others counts
passed=0 failed=0 skipped=0

# check NAME COMMAND...: whether COMMAND succeeds. With 77 it cannot be tried here, and the last
# line of its words says why.
check() {
    local name=$1 began=$SECONDS status=0
    shift
    [[ $name == *${only:-}* ]] || return 0
    "$@" > "${said:?}" 2>&1 < /dev/null || status=$?
    case $status in
        0) passed=$((passed + 1)) && printf 'ok      %-72s %3d s\n' "$name" $((SECONDS - began)) ;;
        77) skip "$name: $(tail -n 1 "$said" | sed 's/^skipped: //')" ;;
        *)
            failed=$((failed + 1))
            echo "FAILED  $name"
            sed 's/^/        /' "$said" | tail -n 60
            ;;
    esac
}

# skip WHAT AND WHY
skip() { skipped=$((skipped + 1)) && echo "skipped: $*"; }

# cannot WHAT: nothing can be checked.
cannot() {
    echo "cannot $*"
    echo "0 passed, 1 failed"
    exit 1
}

# The last line of all; a script that checked nothing has failed.
counts() {
    [ $((passed + failed + skipped)) -gt 0 ] || failed=1
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
}
