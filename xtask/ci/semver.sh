#!/usr/bin/env bash
# Do programs that use the crates compile with this tree as well? cargo-semver-checks
# compares what the public crates export with what they exported at REVISION:
# `xtask/ci/semver.sh [REVISION] [PACKAGE...]`, the newest tag `v*` and all that are published
# unless named. What breaks programs may come with a new minor version below 1.0, and is
# an error without one.
#
# A maintainer's, before a release: the tool is minutes of compiling and no step of
# CI has it, `cargo install --locked cargo-semver-checks@0.51.0`. It reads rustdoc's
# JSON, whose format is a compiler's: a newer compiler needs a newer tool.
set -euo pipefail
cd "$(dirname "$0")/../.."
export MPICC=${MPICC:-/usr/bin/mpicc.openmpi}
cargo semver-checks --version > /dev/null 2>&1 || { echo "there is no cargo-semver-checks: see $0" && exit 2; }
revision=${1:-$(git describe --tags --match 'v*' --abbrev=0 2> /dev/null || true)}
[ -n "$revision" ] || { echo "no tag v* is there: name the revision to compare with" && exit 2; }
[ $# -eq 0 ] || shift
if [ $# -eq 0 ]; then
    mapfile -t packages < <(cargo metadata --no-deps --format-version 1 |
        python3 -c 'import json, sys
for package in json.load(sys.stdin)["packages"]:
    if package["publish"] is None and any("lib" in target["kind"] for target in package["targets"]):
        print(package["name"])')
    set -- "${packages[@]}"
fi
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
said=$work/said
. xtask/ci/checks.sh
for package in "$@"; do
    check "$package" cargo semver-checks --baseline-rev "$revision" --package "$package" --default-features
done
counts
