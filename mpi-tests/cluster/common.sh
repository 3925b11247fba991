# shellcheck shell=bash
# Sourced by the scripts that have cases on emulated nodes, with $here and $CLUSTER: how their
# checks are made, and the nodes' kernel, made.
: "${here:?}" "${CLUSTER:?}"
. xtask/ci/checks.sh
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
said=$work/said
# What ends with it says that a node has died (nodes.sh).
# shellcheck disable=SC2034 # of xtask/ci/checks.sh
aborts=125

nothing() { # skipped, with the reason
    skip "cluster: $1"
    counts
    exit
}

# on_nodes COUNT CASES: the checks of the function CASES, on nodes that are booted for them. A
# node of the emulation may die; that, and only that, is tried once more.
on_nodes() {
    local attempt began
    for attempt in 1 2; do
        SHARE=$(mktemp -d /tmp/pinyard-cluster.XXXXXX) || cannot "make a folder for the nodes"
        export SHARE
        trap '"$here/nodes.sh" down; rm -rf "$work"' EXIT
        passed=0 failed=0 skipped=0 left=0 aborted='' began=$SECONDS
        if "$here/nodes.sh" up "$1"; then
            echo "booted in $((SECONDS - began)) s"
            "$2"
        else
            aborted="the boot"
        fi
        "$here/nodes.sh" down
        trap 'rm -rf "$work"' EXIT
        [ -n "$aborted" ] || return 0
        echo "a node died in attempt $attempt, in $aborted:"
        tail -n 20 "$work/died" 2> /dev/null
    done
    failed=$((failed + 1))
}

kernel=$("$here/build.sh" "$CLUSTER") || {
    status=$?
    [ $status -eq 77 ] && nothing "$kernel"
    cannot "make the nodes' kernel: status $status: $kernel"
}
echo "$kernel"
