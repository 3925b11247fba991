#!/usr/bin/env bash
# Do the crates that are published package, and compile from what they package?
#
# The root crate is not yet among them: its command depends on crates that are not published.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
. xtask/ci/checks.sh
said=$(mktemp)
home=$(mktemp -d)
trap 'rm -rf "$said" "$said.late" "$home"' EXIT
export MPICC=${MPICC:-/usr/bin/mpicc.openmpi}
target=${CARGO_TARGET_DIR:-target}/package-check
# Cargo unpacks what it has packaged in its home, and keeps it and what it compiled of it for the next
# time, by the version alone: a new home with what it has downloaded, and a new target folder.
mkdir "$home/registry"
for kept in config.toml registry/index registry/cache; do
    [ ! -e "${CARGO_HOME:-$HOME/.cargo}/$kept" ] || ln -s "$(realpath "${CARGO_HOME:-$HOME/.cargo}/$kept")" "$home/$kept"
done
rm -rf "$target"
mapfile -t published < <(cargo metadata --no-deps --format-version 1 |
    python3 -c 'import json, sys; print(*(p["name"] for p in json.load(sys.stdin)["packages"] if p["publish"] is None and p["name"] != "pinyard"), sep="\n")')
[ ${#published[@]} -gt 5 ] || cannot "find the crates that are published"
echo "published: ${published[*]}"
# Together: a crate is compiled with those that are packaged beside it.
check "package and compile" \
    env CARGO_HOME="$home" cargo package --quiet --locked --allow-dirty --target-dir "$target" "${published[@]/#/-p=}"
for crate in "${published[@]}"; do
    check "$crate has its sources" test -n "$(tar tzf "$target/package/$crate-"*.crate 2> /dev/null | grep src/lib.rs)"
done
counts
