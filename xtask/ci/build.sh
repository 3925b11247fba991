#!/usr/bin/env bash
# Builds what the tests run: for each folder one selection of packages, so that no crate is compiled
# a second time with another script's features. What is built already takes a second.
#
#   xtask/ci/build.sh debug     target/debug: libraries, programs and tests
#   xtask/ci/build.sh release   target/release: libraries and programs that measure, or run for long
#   xtask/ci/build.sh openmpi   target/openmpi/release: programs that are linked with Open MPI
#   xtask/ci/build.sh mpich     target/mpich/release: the same with MPICH
#   xtask/ci/build.sh selected  builds nothing: the words by which cargo selects what debug has
#   xtask/ci/build.sh features FOLDER   likewise, the features that it is built with
set -euo pipefail
cd "$(dirname "$0")/../.."
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
target=${CARGO_TARGET_DIR:-target}
of_mpi=(pinyard-mpi pinyard-mpi-c pinyard-mpi-tests)
measured=(pinyard pinyard-cli pinyard-preload pinyard-mpi-tests pinyard-benches)
# The other MPI's programs are built as most are, without cudarc.
features() {
    local names name
    case $1 in
        debug) names=(soak neighbours cluster) ;;
        release) names=(soak neighbours) ;;
        openmpi) names=(verbs cudarc) ;;
        mpich) names=(verbs gpu) ;;
    esac
    for name in "${names[@]}"; do echo "pinyard-mpi-tests/$name"; done
}
without_mpi=(--workspace --exclude pinyard-fuzz --exclude pinyard-mpi --exclude pinyard-mpi-c --features "$(features debug | xargs)")

# Compiled crates hold no path of their folder: another starts with those that need no MPI.
seed() { # from, to
    [ -d "$target/$2" ] || [ ! -d "$target/$1" ] || {
        mkdir -p "$target/$2.new"
        cp -a "$target/$1" "$target/$2.new/release"
        # Its build script does not look at MPICC again (mpi-sys 0.2); who links with MPI follows.
        cargo clean --quiet --release --target-dir "$target/$2.new" -p mpi-sys -p mpi "${of_mpi[@]/#/-p=}"
        mv "$target/$2.new" "$target/$2"
    }
}

with_mpi() { # folder
    MPICC=/usr/bin/mpicc.$1 cargo build --quiet --release --target-dir "$target/$1" "${of_mpi[@]/#/-p=}" \
        --lib --bins --examples --features "$(features "$1")"
}

[ "${1:-}" != features ] || { features "${2:-}" && exit; }
[ "${1:-}" != selected ] || { printf '%s\n' "${without_mpi[@]}" && exit; }
mkdir -p "$target"
exec 9> "$target/.build.lock"
flock 9
case ${1:-} in
    debug) cargo build --quiet "${without_mpi[@]}" --all-targets "${@:2}" ;;
    release) cargo build --quiet --release "${measured[@]/#/-p=}" --lib --bins --examples --features "$(features release)" ;;
    openmpi) seed release openmpi && with_mpi openmpi ;;
    mpich) seed openmpi/release mpich && with_mpi mpich ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
