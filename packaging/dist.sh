#!/usr/bin/env bash
# `make dist`: the sources of the last commit, pinyard-VERSION.tar.gz in target/package.
set -euo pipefail
cd "$(dirname "$0")/.."
. packaging/common.sh
mkdir -p "$package"
git archive --format=tar.gz --prefix="pinyard-$version/" -o "$package/pinyard-$version.tar.gz" HEAD
echo "$package/pinyard-$version.tar.gz"
