#!/usr/bin/env bash
# Do the crates that are published package, with what their users look for, and compile from what they
# package? Does docs.rs get their documentation?
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
. xtask/ci/checks.sh
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
said=$work/said home=$work/home
export MPICC=${MPICC:-/usr/bin/mpicc.openmpi}
target=${CARGO_TARGET_DIR:-target}/package-check
# Cargo unpacks what it has packaged in its home, and keeps it and what it compiled of it for the next
# time, by the version alone: a new home with what it has downloaded, and a new target folder.
mkdir -p "$home/registry"
for kept in config.toml registry/index registry/cache; do
    [ ! -e "${CARGO_HOME:-$HOME/.cargo}/$kept" ] || ln -s "$(realpath "${CARGO_HOME:-$HOME/.cargo}/$kept")" "$home/$kept"
done
rm -rf "$target"
# Name, version and what is missing of what a registry's page shows.
described=$(cargo metadata --no-deps --format-version 1 | python3 -c '
import json, sys
for crate in json.load(sys.stdin)["packages"]:
    if crate["publish"] is None:
        docs = (crate["metadata"] or {}).get("docs", {}).get("rs")
        shown = {key: crate[key] for key in ("description", "license", "readme", "keywords", "categories", "rust_version")}
        print(crate["name"], crate["version"], *(key for key, value in (shown | {"docs.rs": docs}).items() if not value))')
mapfile -t published < <(awk '{ print $1 }' <<< "$described")
[ ${#published[@]} -gt 5 ] || cannot "find the crates that are published"
echo "published: ${published[*]}"
# Together: a crate is compiled with those that are packaged beside it.
check "package and compile" \
    env CARGO_HOME="$home" cargo package --quiet --locked --allow-dirty --target-dir "$target" "${published[@]/#/-p=}"
holds() { # CRATE VERSION MISSING...
    local file files
    [ $# -eq 2 ] || { echo "Cargo.toml says nothing of: ${*:3}"; return 1; }
    files=$(tar tzf "$target/package/$1-$2.crate" | sed "s|^$1-$2/||") || return 1
    for file in README.md LICENSE-APACHE LICENSE-MIT; do grep -qx "$file" <<< "$files" || { echo "no $file"; return 1; }; done
    grep -qxE 'src/(lib|bin/pinyard/main)\.rs' <<< "$files" || { echo "no sources"; return 1; }
    # Of the book, only the pages whose examples the root crate compiles.
    ! grep -vE '^(src|examples)/|^(build\.rs|README\.md|LICENSE-.*|Cargo\.(toml|toml\.orig|lock)|\.cargo_vcs_info\.json)$|^docs/src/(backends|observability|rust|start)\.md$' <<< "$files"
}
while read -r crate version missing; do
    # shellcheck disable=SC2086
    check "$crate has what its users look for, and no more" holds "$crate" "$version" $missing
done <<< "$described"
# As docs.rs makes it: no driver, and of all MPIs MPICH.
if command -v mpicc.mpich > /dev/null; then
    check "pinyard-mpi's pages where the MPI is MPICH" \
        env MPICC="$(command -v mpicc.mpich)" DOCS_RS=1 cargo doc --quiet --locked --no-deps --target-dir "$target/docs" -p pinyard-mpi --features cudarc
else
    skip "pinyard-mpi's pages: no MPICH"
fi
rm -rf "$target"
counts
