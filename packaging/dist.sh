#!/usr/bin/env bash
# `make dist`: the sources of the last commit in target/package, pinyard-VERSION.tar.gz, and
# pinyard-VERSION-vendored.tar.xz with the crates that they need, which builds without a network:
# `make build CARGOFLAGS="--offline --locked"`. Made again of the same commit they are the same files.
set -euo pipefail
cd "$(dirname "$0")/.."
. packaging/common.sh
name=pinyard-$version
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
mkdir -p "$package"
git archive --format=tar.gz --prefix="$name/" -o "$package/$name.tar.gz" HEAD
echo "$package/$name.tar.gz"

tar -x -C "$work" -f "$package/$name.tar.gz"
(cd "$work/$name" && cargo vendor --quiet --locked --versioned-dirs vendor > /dev/null) ||
    fail "cargo vendor failed: the crates of Cargo.lock are downloaded where cargo has not got them"
cat >> "$work/$name/.cargo/config.toml" << 'END'

[source.crates-io]
replace-with = "vendored"

[source.vendored]
directory = "vendor"
END
# Two threads wherever it is made: what xz writes depends on whether it has several.
tar -c -C "$work" --format=gnu --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" \
    --mode=go=rX,u+rw,a-s "$name" | xz -6 -T2 > "$package/$name-vendored.tar.xz"
echo "$package/$name-vendored.tar.xz"
