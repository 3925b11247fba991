#!/usr/bin/env bash
# May what a step has skipped be skipped? Prints each line "skipped: ..." of its log that
# ci/skips.txt does not have; status 1 where there is one.
#
#   ci/skips.sh STEP LOG
#   ci/skips.sh test     tries that, and whether the list is of these steps and sources
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
list=ci/skips.txt

unlisted() { # step, log
    awk -F '\t' -v step="$1" '
        FNR == NR { if (!/^#/ && ($1 == step || $1 == "*")) listed[$2] = 1; next }
        match($0, /(^| )skipped: /) {
            text = substr($0, RSTART + RLENGTH)
            for (words in listed) if (index(text, words)) next
            print "skipped: " text
            found = 1
        }
        END { exit found }
    ' $list "$2"
}

if [ "${1:-}" != test ]; then
    unlisted "$1" "$2"
    exit
fi

log=$(mktemp) && said=$(mktemp) && trap 'rm -f "$log" "$said"' EXIT
. ci/checks.sh
made_up() { printf '%s\n' 'ok      a test' "$1" 'test result: ok. 3 passed' > "$log"; }
may() { made_up "$2" && unlisted "$1" "$log"; }
may_not() { made_up "$2" && ! unlisted "$1" "$log" > "$said" && grep -qF "$3" "$said"; }
check "one that is listed" may aarch64 'skipped: aarch64: rustup cannot add aarch64-unknown-linux-gnu'
check "one of all steps, behind a test's name" may unit 'test huge ... skipped: transparent huge pages are off on this machine (never)'
check "one that is not" may_not unit 'skipped: the weather is bad' 'skipped: the weather is bad'
check "one that another step may skip" may_not unit 'skipped: aarch64: rustup cannot add it' 'rustup cannot add it'
check "what ci/deps.sh installs" may_not report 'skipped: there is no chromium in PATH' chromium
in_order() {
    local step words lacks wrong=0
    while IFS=$'\t' read -r step words lacks; do
        [ -n "$lacks" ] || { echo "no reason: $step: $words" && wrong=1; }
        [ "$step" = '*' ] || grep -qE "step $step( |$)" ci/test.sh || { echo "no step $step in ci/test.sh" && wrong=1; }
        # Words that a source prints, as they stand there.
        git grep -qF -e "$words" -- ':!ci/skips.txt' ':!ci/skips.sh' || { echo "nothing says: $words" && wrong=1; }
    done < <(grep -v '^#' $list)
    return $wrong
}
check "the list has steps that there are, words that a source prints, and reasons" in_order
counts
