# Sourced by the scripts that have cases, with $here and $CLUSTER: how they end early, and
# the nodes' kernel, made.

nothing() { # skipped, with the reason
    echo "skipped: cluster: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
die() {
    echo "cluster: $1"
    echo "0 passed, 1 failed"
    exit 1
}

kernel=$("$here/build.sh" "$CLUSTER") || {
    status=$?
    [ $status -eq 77 ] && nothing "$kernel"
    die "the nodes' kernel could not be made: $kernel"
}
echo "$kernel"
