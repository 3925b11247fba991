# shellcheck shell=bash
# For the scripts that make many checks, which read it in: counts them, shows what a failed
# one said, and ends with the line that `cargo xtask test` adds up.
#
#   said=FILE       where a check's words are, until the next one
#   only=PATTERN    only the checks whose names have it are made; none of the others counts
#   aborts=STATUS   a check that ends with it counts as nothing, and no other is made: $aborted is its name
#   QUICK=1         the checks behind `rest` are not made, and counted as left
#   VERBOSE=1       shows what each check said
#   CHECK_NOW=FILE  has the name of the check that runs
passed=0 failed=0 skipped=0 left=0 leaves=no aborted=

# check NAME COMMAND...: whether COMMAND succeeds. With 77 it cannot be tried here, and the last
# line of its words says why. What a function assigns to `noted` stands behind the name; of a failed
# check that its limit has ended, that.
check() {
    local checked=$1 began=$SECONDS status noted=
    shift
    [[ -z $aborted && $checked == *${only:-}* ]] || return 0
    [ $leaves = no ] || { left=$((left + 1)) && return 0; }
    [ -z "${CHECK_NOW:-}" ] || echo "$checked" > "$CHECK_NOW"
    rm -f "${said:?}.late"
    # A function may use our `status` as its own.
    if "$@" > "$said" 2>&1 < /dev/null; then status=0; else status=$?; fi
    case $status in
        "${aborts:-none}") aborted=$checked && return 0 ;;
        0)
            passed=$((passed + 1))
            printf 'ok      %-72s %3d s%s\n' "$checked" $((SECONDS - began)) "${noted:+  $noted}"
            [ -z "${VERBOSE:-}" ] || sed 's/^/        /' "$said"
            ;;
        77) skip "$checked: $(tail -n 1 "$said" | sed 's/^skipped: //')" ;;
        *)
            failed=$((failed + 1))
            if [ -e "$said.late" ]; then
                echo "FAILED  $checked: ended by its limit: $(head -n 1 "$said.late")"
                sed 's/^/        /' "$said" | tail -n 400
            else
                echo "FAILED  $checked${noted:+: $noted}"
                sed 's/^/        /' "$said" | tail -n 60
            fi
            ;;
    esac
}

# quick: whether the checks behind `rest` are left.
quick() { [ "${QUICK:-0}" != 0 ]; }

# rest COMMAND...: COMMAND is a check, or a function that makes some. Those are left where QUICK is set.
rest() {
    local before=$leaves
    ! quick || leaves=yes
    "$@"
    leaves=$before
}

# skip WHAT AND WHY
skip() {
    [[ -z $aborted && $* == *${only:-}* ]] || return 0
    [ $leaves = no ] || { left=$((left + 1)) && return 0; }
    skipped=$((skipped + 1)) && echo "skipped: $*"
}

# cannot WHAT: nothing can be checked.
cannot() {
    echo "cannot $*"
    echo "0 passed, 1 failed"
    exit 1
}

# The last line of all; a script that checked nothing has failed, unless another script's `only` left it nothing
# (`inner=yes`).
counts() {
    [ $((passed + failed + skipped + left)) -gt 0 ] || [ "${inner:-}${only:+yes}" = yesyes ] || failed=1
    echo "$passed passed, $failed failed, $skipped skipped$([ $left -eq 0 ] || echo ", $left left")"
    [ "$failed" -eq 0 ]
}

# include LINE: adds the last line of another script; false where it is none.
include() {
    [[ $1 =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)?(,\ ([0-9]+)\ left)?$ ]] || return 1
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
    skipped=$((skipped + ${BASH_REMATCH[4]:-0})) left=$((left + ${BASH_REMATCH[6]:-0}))
}

# says STATUS PATTERN... -- COMMAND...: COMMAND ends with STATUS (any: whatever but 0), and each
# extended pattern is in some line of its output, which is in $said.says afterwards. Notes what
# the first pattern has found.
says() {
    local wanted=$1 status pattern patterns=()
    shift
    while [ "$1" != -- ]; do patterns+=("$1") && shift; done
    shift
    if "$@" > "$said.says" 2>&1; then status=0; else status=$?; fi
    cat "$said.says"
    [ $status -ne "${aborts:--1}" ] || return $status
    if [ "$wanted" = any ] && [ $status -ne 0 ] && [ $status -ne 124 ]; then wanted=$status; fi
    [ $status = "$wanted" ] || { echo "status $status, not $wanted" && return 1; }
    for pattern in "${patterns[@]}"; do
        grep -qE -- "$pattern" "$said.says" || { echo "no line has '$pattern'" && return 1; }
    done
    [ ${#patterns[@]} -eq 0 ] || noted=$(grep -m 1 -oE -- "${patterns[0]}" "$said.says")
}

# ---- Limits ---------------------------------------------------------------------------------

# limited SECONDS COMMAND...: runs COMMAND, a program or a function, in a process group of its
# own. Where it takes longer, the stacks of its processes are written to stderr, it is ended by
# SIGTERM and 5 seconds later by SIGKILL, and the status is 124. Hands SIGINT and SIGTERM on to it.
limited() {
    local seconds=$1 status command='' watch late own interrupted='' again jobs=$- kind
    shift
    own=$(trap -p INT TERM)
    for kind in INT TERM; do
        # shellcheck disable=SC2064 # this one
        trap "interrupted=$kind again=yes; "'[ -z "$command" ] || kill "-$interrupted" "$command" 2> /dev/null' $kind
    done
    set -m # a group of its own, and SIGINT as it was
    exec {late}<> <(:)
    "$@" <&0 {late}>&- &
    command=$!
    end_late "$command" "$seconds" "$*" "$late" >&2 &
    watch=$!
    [[ $jobs == *m* ]] || set +m
    [ -z "$interrupted" ] || kill "-$interrupted" "$command" 2> /dev/null
    # A signal ends a wait early.
    while again=no status=0; do
        wait "$command" || status=$?
        [ $again = yes ] || break
    done
    trap - INT TERM
    eval "$own"
    if read -r -t 0 -u "$late"; then
        status=124
    else
        # Nothing less: just forked, it would run the script's own EXIT trap.
        kill -KILL "$watch" 2> /dev/null
    fi
    wait "$watch" 2> /dev/null
    exec {late}>&-
    # The script ends as it would have without, and leaves nothing behind.
    if [ -n "$interrupted" ] && [ $BASHPID -eq $$ ]; then
        kill -TERM -- "-$command" 2> /dev/null
        kill "-$interrupted" $$
    fi
    return "$status"
}

# end_late PID SECONDS WORDS FILE: the other half of `limited`, which looks into FILE, a pipe, and
# ends it where that is empty.
end_late() {
    local late
    pause "$2"
    echo late >&"$4"
    [ -z "${said:-}" ] || echo "$2 s: $3" >> "$said.late"
    echo "limited: took more than $2 s: $3"
    mapfile -t late < <(processes_of "$1")
    stacks "${late[@]}"
    kill -TERM -- "-$1" 2> /dev/null
    until_gone -- "-$1"
    kill -KILL "${late[@]}" 2> /dev/null
    until_gone "${late[@]}"
    exit 0
}
until_gone() {
    for _ in {1..50}; do
        kill -0 "$@" 2> /dev/null || return 0
        pause 0.1
    done
}

# pause SECONDS: without a process, which would be left behind.
pause() { read -r -t "$1" <> <(:) || true; }

# processes_of PID: it, its group, and what is below them; mpirun's ranks have groups of their own.
processes_of() {
    local file line pid parent group more=yes
    local -A parents=() kin=()
    for file in /proc/[0-9]*/stat; do
        read -r line 2> /dev/null < "$file" || continue
        pid=${line%% *}
        read -r _ parent group _ <<< "${line##*) }"
        parents[$pid]=$parent
        [ "$group" != "$1" ] && [ "$pid" != "$1" ] || kin[$pid]=yes
    done
    while [ $more = yes ]; do
        more=no
        for pid in "${!parents[@]}"; do
            [ -z "${kin[$pid]:-}" ] && [ -n "${kin[${parents[$pid]}]:-}" ] && kin[$pid]=yes more=yes
        done
    done
    printf '%s\n' "${!kin[@]}" | sort -n
}

# stacks PID...: where each of their threads is, as far as the kernel tells.
stacks() {
    local pid task
    for pid; do
        [ -d "/proc/$pid" ] || continue
        echo "process $pid: $(tr '\0' ' ' < "/proc/$pid/cmdline" 2> /dev/null | cut -c1-300)"
        for task in "/proc/$pid"/task/*; do
            echo "    thread ${task##*/} $(cat "$task/comm"): $(sed -n 's/^State:\t//p' "$task/status"), in $(cat "$task/wchan"), system call $(cat "$task/syscall")"
            sed 's/^/        /' "$task/stack"
        done 2> /dev/null
    done
}
