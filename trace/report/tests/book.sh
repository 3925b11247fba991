#!/usr/bin/env bash
# Runs the commands of docs/src/reports.md, as they stand there, one after the other in an
# empty folder, and looks at what they leave. book.sh FOLDER: where `pinyard` is, and
# examples/solver.
set -uo pipefail
programs=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export PATH=$programs:$PATH
ln -s "$programs/examples/solver" solver
passed=0 failed=0
check() { # name, command...
    local name=$1
    shift
    if "$@"; then passed=$((passed + 1)) && echo "ok: $name"; else failed=$((failed + 1)) && echo "FAILED: $name" && cat out; fi
}
commands=0
# shellcheck disable=SC2016
while IFS= read -r command; do
    commands=$((commands + 1))
    check "$command" bash -ec "$command" > out 2>&1 < /dev/null
    case $command in *'top live'*) cp out top ;; esac
    tail -n 1 out
done < <("$root"/ci/block.sh docs/src/reports.md page && "$root"/ci/block.sh docs/src/reports.md perfetto && "$root"/ci/block.sh docs/src/reports.md top)
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
check "a folder without traces is an error that says what to do" bash -c 'mkdir none; pinyard report none 2> out; [ $? -eq 2 ] && grep -q PINYARD_TRACE out'
check "the page is its owner's and follows no link" bash -c 'echo theirs > somebodys; ln -s somebodys page.html; pinyard report traces -o page.html && [ "$(cat somebodys)" = theirs ] && [ "$(stat -c %a:%F page.html)" = "600:regular file" ]'
check "a file that is no trace is an error with its line" bash -c 'pinyard report /proc/self/status 2> out; [ $? -eq 2 ] && grep -q "line 1" out'
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
