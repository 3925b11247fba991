#!/usr/bin/env bash
# Does xtask/ci/checks.sh count, name and end what it should? Each case is a script of its own that
# reads it in.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
said=$work/said
. xtask/ci/checks.sh

# ends STATUS LINES SCRIPT [VARIABLE=VALUE...]: its status and its output; `S` stands for the seconds of a check.
ends() {
    local status=0 wanted=$1 lines=$2 script=$3
    shift 3
    env -u QUICK -u only "$@" bash -uc "said=$work/inner; . xtask/ci/checks.sh; $script"$'\ncounts' > "$work/out" 2>&1 || status=$?
    sed -E 's/ +[0-9]+ s( |$)/ S\1/' "$work/out" > "$work/told"
    diff <(echo "$lines") "$work/told" || return 1
    [ $status -eq "$wanted" ] || { echo "status $status, $wanted wanted" && return 1; }
}
# hangs PATTERN... -- SCRIPT: a failure, and each pattern is in a line of it.
hangs() {
    local status=0 patterns=()
    while [ "$1" != -- ]; do patterns+=("$1") && shift; done
    env -u QUICK -u only bash -uc "said=$work/inner; . xtask/ci/checks.sh; $2"$'\ncounts' > "$work/out" 2>&1 || status=$?
    cat "$work/out"
    [ $status -eq 1 ] || return 1
    for pattern in "${patterns[@]}"; do grep -qE -- "$pattern" "$work/out" || { echo "no line has: $pattern" && return 1; }; done
}
# gone: no process has these words any more.
gone() { ! pgrep -f -- "$1"; }

check "a check that succeeds" ends 0 $'ok      a S\n1 passed, 0 failed, 0 skipped' 'check a true'
check "one that uses the harness's names inside" ends 0 $'ok      a S\n1 passed, 0 failed, 0 skipped' \
    'uses() { status=3 name=b; true; }; check a uses'
check "one that fails counts, and shows its words" ends 1 $'FAILED  a\n        its words\n0 passed, 1 failed, 0 skipped' \
    'check a bash -c "echo its words; exit 3"'
check "77 is a skip, with the last line as its reason" ends 0 $'skipped: a: no device\n0 passed, 0 failed, 1 skipped' \
    'check a bash -c "echo tries; echo skipped: no device; exit 77"'
check "nothing checked is a failure" ends 1 '0 passed, 1 failed, 0 skipped' ''
check "what another pattern leaves out does not count" ends 0 $'ok      b S\n1 passed, 0 failed, 0 skipped' \
    'only=b; check a false; rest check a false; skip a: no device; check b true'
check "QUICK leaves and counts" ends 0 $'ok      a S\n1 passed, 0 failed, 0 skipped, 3 left' \
    'two() { check b false; skip c: no device; }; rest two; rest check d false; check a true' QUICK=1
check "without QUICK everything is made" ends 1 $'FAILED  b\nok      a S\n1 passed, 1 failed, 0 skipped' \
    'rest check b false; check a true' QUICK=0
check "another script's last line is added" ends 1 $'3 passed, 1 failed, 1 skipped, 2 left' \
    'include "2 passed, 1 failed"; include "1 passed, 0 failed, 1 skipped, 2 left"; include "no line" && exit 3'
check "what is noted stands behind it" ends 0 $'ok      a S  3 lines\n1 passed, 0 failed, 0 skipped' \
    'check a says 3 "[0-9]+ lines" "^of" -- bash -c "echo has 3 lines; echo of text; exit 3"'
check "so it does where a check has failed" ends 1 $'FAILED  a: 3 lines\n0 passed, 1 failed, 0 skipped' \
    'long() { noted="3 lines" && false; }; check a long'
check "a pattern that no line has, and another status" ends 1 \
    $'FAILED  a\n        text\n        no line has \'lines\'\nFAILED  b\n        status 1, not 0\n0 passed, 2 failed, 0 skipped' \
    'check a says 0 text lines -- echo text; check b says 0 text -- false'
check "a limit is no status of \"any\"" ends 1 '0 passed, 1 failed, 0 skipped' \
    'check a says any -- bash -c "exit 3" > /dev/null; passed=$((passed - 1)); check b says any -- bash -c "exit 124" > /dev/null'
check "one that aborts counts as nothing, and ends the others" ends 0 $'ok      a S\nb\n1 passed, 0 failed, 0 skipped' \
    'aborts=125; check a true; check b says any "" -- bash -c "exit 125"; check c false; skip d; echo $aborted'
check "cannot" ends 1 $'cannot build\n0 passed, 1 failed' 'cannot build'

# A shell's child, and its child in a session of its own, as mpirun's ranks are.
hang='inner() { setsid --wait sleep 3141 & wait; }'
named() {
    local frames=()
    # The kernel's frames, where it shows them.
    ! grep -q . /proc/self/stack 2> /dev/null || frames=('\[<0>\] .*nanosleep')
    hangs '^FAILED  slow: ended by its limit: 1 s: inner$' 'limited: took more than 1 s: inner' 'process [0-9]+: sleep 3141' \
        'thread [0-9]+ sleep: S \(sleeping\), in .*, system call [0-9]+ ' '0 passed, 1 failed' "${frames[@]}" -- "$hang; check slow limited 1 inner"
}
check "a hang is named, with the stack of the process that sleeps" named
check "it is gone, in whatever session" gone '^sleep 3141$'
check "a hang whose words go elsewhere is named as well" hangs '^FAILED  slow: ended by its limit: 1 s: sleep 3142$' -- \
    'quiet() { limited 1 sleep 3142 > /dev/null 2>&1; false; }; check slow quiet'
check "one that ignores SIGTERM is ended" ends 124 'limited: over' \
    'limited 1 bash -c "trap : TERM; while :; do read -t 1 <> <(:); done" 2> /dev/null; status=$?; echo limited: over; exit $status'
check "a program in time keeps its status, output and input" ends 7 $'words' 'echo words | limited 60 bash -c "cat; exit 7"; exit $?'
check "a program that a signal ends has its status" ends 0 'status 139' \
    'limited 60 bash -c "kill -SEGV \$\$" 2> /dev/null; echo status $?; exit 0'
check "its output's end does not wait for the limit" ends 0 'words' 'limited 3143 echo words | cat; exit'
# The limit's process is a copy of the script, traps included, until bash has cleared them.
check "the script's EXIT trap is its own" ends 0 $'one end' \
    'trap "echo one end" EXIT; for i in {1..200}; do limited 60 true; done; exit 0'
# Each of them a race between the program's end and the limit's begin.
check "forty programs in a row, none of them late" ends 0 'none' \
    'for i in {1..40}; do limited 4 true || echo late; done; [ $SECONDS -ge 4 ] && echo $SECONDS s; echo none; exit 0'
check "nothing is left that waits for the limit" gone 3143
# As a user ends a test that runs in the background.
handed_on() {
    local runner status=0
    limited 60 bash -c 'trap "exit 9" '"$1"'; : > '"$work/ready"'; while :; do read -t 1 <> <(:); done' &
    runner=$!
    until [ -e "$work/ready" ]; do pause 0.05; done
    kill "-$1" $runner
    wait $runner || status=$?
    rm "$work/ready"
    [ $status -eq 9 ] || { echo "status $status" && return 1; }
}
check "SIGTERM is handed on" handed_on TERM
check "SIGINT is handed on" handed_on INT
# A script that is ended while it waits ends, and its program with it.
ended() {
    local runner status=0
    bash -uc ". xtask/ci/checks.sh; limited 3144 bash -c ': > $work/ready; sleep 3144; :'; echo goes on" > "$work/out" 2>&1 &
    runner=$!
    until [ -e "$work/ready" ]; do pause 0.05; done
    kill -TERM $runner
    wait $runner || status=$?
    rm "$work/ready"
    cat "$work/out"
    [ $status -eq 143 ] && ! grep -q 'goes on' "$work/out" && gone '^sleep 3144$'
}
check "a script that is ended takes its program along" ended
counts
