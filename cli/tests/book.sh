#!/usr/bin/env bash
# Runs the commands of docs/src/reports.md, as they stand there, one after the other in an
# empty folder, and looks at what they leave. book.sh FOLDER: where `pinyard` is, and
# examples/solver.
set -uo pipefail
programs=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
said=$work/said
. "$root"/xtask/ci/checks.sh
cd "$work" || exit 1
export PATH=$programs:$PATH
ln -s "$programs/examples/solver" solver
commands=0
# shellcheck disable=SC2016
while IFS= read -r command; do
    commands=$((commands + 1))
    check "$command" bash -ec "$command"
    case $command in *'top live'*) cp said top ;; esac
done < <("$root"/xtask/ci/block.sh docs/src/reports.md page && "$root"/xtask/ci/block.sh docs/src/reports.md perfetto && "$root"/xtask/ci/block.sh docs/src/reports.md top)
check "the page has its commands" [ "$commands" -eq 4 ]
check "the trace is its owner's" [ "$(stat -c %a traces/*.trace)" = 600 ]
check "run.html is a page that fetches nothing" bash -c '! grep -qE "(src|href)=.?(http|//)" run.html && grep -q "</html>" run.html'
check "the registrations are in it" grep -q 'register, mlock' run.html
check "run.json is Chrome trace JSON" python3 - <<'EOF'
import json, sys
events = json.load(open("run.json"))["traceEvents"]
names = {event["name"] for event in events}
for event in events:
    assert event["ph"] in "XiMC" and isinstance(event["pid"], int) and isinstance(event["tid"], int), event
    assert event["ts"] >= 0 and (event["ph"] != "X" or event["dur"] >= 0), event
assert {"register", "deregister", "alloc", "free", "process_name", "thread_name", "pinned bytes"} <= names, names
assert sum(event["name"] == "register" for event in events) >= 2 and len(events) > 8000, len(events)
EOF
check "top has a row with what the program does" grep -qE '^ +- .* runs +[0-9]' top
check "counters alone leave no trace" bash -c '! compgen -G "live/*.trace" && compgen -G "live/*.counters"' > /dev/null
# Table after table while a program runs, and an end when it has ended.
follows() { # folder, rounds, command of top...
    PINYARD_TRACE=$1 PINYARD_TRACE_EVENTS=0 ./solver "$2" > solver.out &
    local solver=$! status=0 try
    for try in {1..100}; do compgen -G "$1/*.counters" > /dev/null && break; sleep 0.1; done
    limited 60 "${@:3}" > loop.out 2>&1 < /dev/null || status=$?
    wait $solver || status=$?
    cat loop.out
    echo "try $try, status $status"
    [ $status -eq 0 ]
}
in_turns() {
    follows loop 6000 pinyard top loop --every 0.3 && python3 - << 'EOF'
import re
tables = open("loop.out").read().strip().split("\n\n")
ends = [re.search(r"(\d+) run, (\d+) ended, 0 silent; (.*) pinned$", table).groups() for table in tables]
assert len(tables) >= 4, len(tables)
assert ends[0][:2] == ("1", "0") and ends[-1][:2] == ("0", "1"), ends
rows = [table.splitlines()[1].split() for table in tables]
hits = [int(row[4].replace(",", "")) for row in rows]
assert hits == sorted(hits) and hits[0] < hits[-1], hits
assert any(row[5] not in ("-", "0") for row in rows), rows
EOF
}
check "top goes on until the program has ended" in_turns
on_terminal() { TERM=xterm follows screen 3000 script --quiet --return --command "stty rows 24 cols 120; pinyard top screen --every 0.3" /dev/null && [ "$(grep -c $'\x1b\\[H\x1b\\[J' loop.out)" -ge 2 ] && grep -q '0 run, 1 ended' loop.out; }
check "on a terminal each table is drawn over the last" on_terminal
interrupted() {
    PINYARD_TRACE=stops PINYARD_TRACE_EVENTS=0 ./solver 100000000 > solver.out &
    local solver=$! status=0
    until compgen -G "stops/*.counters" > /dev/null || ! kill -0 $solver; do sleep 0.1; done
    # A shell's own background commands ignore SIGINT.
    python3 -c 'import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
top = subprocess.Popen(["pinyard", "top", "stops"], stdout=open("loop.out", "w"))
time.sleep(1.5)
top.send_signal(signal.SIGINT)
sys.exit(top.wait(10) not in (0, 130, -signal.SIGINT))' || status=$?
    kill -KILL $solver
    wait $solver 2> /dev/null
    cat loop.out
    [ $status -eq 0 ] && [ "$(grep -c '1 run, 0 ended' loop.out)" -ge 2 ]
}
check "an interrupt ends it, and not the program" interrupted
check "a folder without traces is an error that says what to do" bash -c 'mkdir none; pinyard report none 2> out; [ $? -eq 2 ] && grep -q PINYARD_TRACE out'
check "the page is its owner's and follows no link" bash -c 'echo theirs > somebodys; ln -s somebodys page.html; pinyard report traces -o page.html && [ "$(cat somebodys)" = theirs ] && [ "$(stat -c %a:%F page.html)" = "600:regular file" ]'
check "a file that is no trace is an error with its line" bash -c 'pinyard report /proc/self/status 2> out; [ $? -eq 2 ] && grep -q "line 1" out'
counts
