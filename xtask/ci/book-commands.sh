#!/usr/bin/env bash
# Do the book's commands work, and does its C compile? Each block of README.md, docs/src and
# slurm/README.md says in its fence who runs it (xtask/pages/src/book/blocks.rs); those that say
# `run` are run here, page by page, in a folder that looks like the tree with `pinyard` on
# PATH. Counts what is run, and what is not with the reason.
#
#   xtask/ci/book-commands.sh [PATTERN]      only the pages whose names have it
set -u
cd "$(dirname "$0")/../.." || exit 2
repository=$PWD
pages_of=${1:-}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$repository/target}
built=$CARGO_TARGET_DIR/release
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
mkdir "$work/blocks"
said=$work/said
. xtask/ci/checks.sh

for profile in debug release; do xtask/ci/build.sh $profile || cannot "build $profile"; done
# In the profile of xtask/ci/docs.sh.
"${CARGO_TARGET_DIR:-target}/debug/pinyard-book" --blocks "$work/blocks" || cannot "read the pages"

# The page's folder: links to the tree, and what its commands leave.
folder_of() {
    local folder=$work/${1//\//-} entry
    if [ ! -d "$folder" ]; then
        mkdir "$folder"
        for entry in "$repository"/*; do [ "$entry" = "$repository/target" ] || ln -s "$entry" "$folder/"; done
        ln -s "$CARGO_TARGET_DIR" "$folder/target"
        ln -s "$built/examples/solver" "$folder/solver"
    fi
    echo "$folder"
}

# Builds happen in the tree itself, whose paths cargo knows.
in_the_tree=$(cat << 'END'
cargo() { (cd "$REPOSITORY" && command cargo "$@"); }
make() { (cd "$REPOSITORY" && command make "$@"); }
END
)
in_folder() { # folder, file
    (cd "$1" && REPOSITORY=$repository PATH=$built:$PATH MPICC=${MPICC:-/usr/bin/mpicc.openmpi} limited 900 \
        bash -euo pipefail -c "$in_the_tree"$'\n'"$(cat "$2")")
}

# What is shown is printed.
as_shown() { # folder, file of commands, file of what they print
    in_folder "$1" "$2" > "$work/printed" 2>&1 || { cat "$work/printed"; return 1; }
    cat "$work/printed"
    xtask/ci/shown.py "$work/printed" "$3"
}

warnings=(-Wall -Wextra -Werror -pedantic -O1 -I src/include)
compile() { # language, file
    case $1 in
        # The block's program gives a stream, whose header is CUDA's.
        c) if grep -q pinyard_mpi.h "$2"; then "${MPICC:-/usr/bin/mpicc.openmpi}" -std=c11 "${warnings[@]}" '-DcudaStream_t=void *' -c -o "$work/object" "$2"; else
            cc -std=c11 "${warnings[@]}" -c -o "$work/object" "$2"; fi ;;
        cpp) c++ -std=c++17 "${warnings[@]}" -x c++ -c -o "$work/object" "$2" ;;
    esac
}

declare -A elsewhere=()
pages=0 compiled_by_cargo=0 last=
while IFS=$'\t' read -r page place language marks file; do
    [[ $page == *$pages_of* ]] || continue
    [ "$page" = "$last" ] || { pages=$((pages + 1)) && last=$page; }
    block=$work/blocks/$file name=$place
    case "$language $marks" in
        *' by='* | by=*) by=${marks#*by=} && marks=by=${by%% *} && elsewhere[$marks]=$((${elsewhere[$marks]:-0} + 1)) ;;
        rust*) compiled_by_cargo=$((compiled_by_cargo + 1)) ;;
        c\ * | cpp\ *)
            check "$name compiles" compile "$language" "$block"
            [[ $marks != file=* ]] || cp "$block" "$(folder_of "$page")/${marks#file=}"
            ;;
        *' run same') check "$name: $(head -n 1 "$block")" as_shown "$(folder_of "$page")" "$block" "$block.printed" ;;
        *' run') check "$name: $(head -n 1 "$block")" in_folder "$(folder_of "$page")" "$block" ;;
        *) elsewhere[$marks]=$((${elsewhere[$marks]:-0} + 1)) ;;
    esac
done < "$work/blocks/list"

echo
echo "$pages pages; $compiled_by_cargo blocks of Rust are documentation tests (cargo test --doc)"
for why in "${!elsewhere[@]}"; do echo "not here: ${elsewhere[$why]} with $why"; done | sort
counts
