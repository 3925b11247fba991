# shellcheck shell=bash disable=SC2034
# What building and installing agree on. Read by the other scripts, from the root.
package=${CARGO_TARGET_DIR:-$PWD/target}/package
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
soname=0
# What the Rust standard library and the loader's functions need; see docs/src/c.md.
system=(-lgcc_s -lutil -lrt -lpthread -lm -ldl)
# The book, a folder.
html=$package/html html_to=share/doc/pinyard/html
# What `pinyard bench` runs, in libexec/pinyard; the last two are those of `instructions`.
bench_programs=(pinyard-bench pinyard-bench-watched counted hook-steps)
# What is linked with an MPI, and installed once for each, in libexec/pinyard/MPI; the first of pinyard-mpi-tests.
mpi_tests_programs=(pinyard-stress gpu-bandwidth rounds-purging rounds-naive rounds-mimalloc)
mpi_programs=("${mpi_tests_programs[@]}" bcast_gpu pinyard-mpi-probe)

# release ARGUMENT...: cargo builds it in release. With BUILT_BEFORE=yes it builds nothing, and what
# there is (xtask/ci/build.sh) is taken: the tests' own installations need no second set of features.
# CARGOFLAGS are more of cargo's options: "--offline --locked" for the vendored archive.
# shellcheck disable=SC2086
release() { [ "${BUILT_BEFORE:-no}" = yes ] || cargo build --release --quiet ${CARGOFLAGS:-} "$@"; }

fail() { echo "$(basename "$0" .sh): $*" >&2; exit 1; }
