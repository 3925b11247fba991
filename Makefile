# `make demo`, `make test`, and `make install PREFIX=... DESTDIR=...`. CONTRIBUTING.md has
# the rest.
.PHONY: demo test test-all cluster-test newcomer fmt clippy docs bench build install uninstall deb dist

MPICC ?= /usr/bin/mpicc.openmpi
TARGET := $(or $(CARGO_TARGET_DIR),target)
DEMO_ARGS ?=

# Where `make install` puts things; docs/src/install.md.
export PREFIX ?= /usr/local
export LIBDIR ?= lib
export DESTDIR ?=

# Installs what is missing, builds, and runs the main job.
demo:
	@xtask/ci/deps.sh demo
	@MPICC=$(MPICC) cargo build --release --quiet -p pinyard-cli
	@MPICC=$(MPICC) cargo build --release --quiet --target-dir $(TARGET)/openmpi -p pinyard-mpi-tests --features mpi --bins
	@$(TARGET)/release/pinyard demo --mpirun mpirun.openmpi --programs $(TARGET)/openmpi/release $(DEMO_ARGS)

# What CI runs, ending with a count: the tests of each kind, whole where a path has changed since
# BASE, and a sample of the rest. TEST_ARGS="--list" says which.
TEST_ARGS ?=
test: test-packages
	@cargo xtask test $(TEST_ARGS)

# All tests, or one part of them: `make test-all PART=nodes`; `cargo xtask test --list --all` has
# the parts.
test-all: test-packages
	@cargo xtask test $(if $(PART),--part $(PART),--all) $(TEST_ARGS)

.PHONY: test-packages
test-packages:
	@xtask/ci/deps.sh test
	@xtask/ci/deps.sh cluster || echo "deps: the steps with emulated nodes will be skipped"

# Real verbs between emulated nodes.
cluster-test:
	@xtask/ci/deps.sh cluster
	@mpi-tests/cluster/run.sh
	@mpi-tests/cluster/wheels.sh

# The README's commands in a bare Debian 12, from nothing; `make newcomer NEWCOMER_ARGS=--test`
# runs `make test` there as well.
NEWCOMER_ARGS ?=
newcomer:
	@xtask/ci/deps.sh newcomer
	@xtask/ci/newcomer.sh $(NEWCOMER_ARGS)

fmt:
	cargo fmt --all

clippy:
	xtask/ci/clippy.sh

# The book, in docs/book.
docs:
	xtask/ci/docs.sh

# pinyard beside its peers; writes docs/benchmarks and the pictures of the book.
bench:
	@xtask/ci/deps.sh test
	xtask/ci/bench.sh

# The libraries, the command and the manual, in target/package; for each MPI found also
# libpinyard_mpi and the programs that are linked with an MPI. `make build MPI="openmpi mpich"`
# for these and no others, `MPI=all` to fail where one cannot be built, `MPI=none` for none.
MPI ?= found
build:
	@packaging/build.sh
	@packaging/mpi.sh $(MPI)

install: build
	@packaging/install.sh install

uninstall:
	@packaging/install.sh uninstall

# A Debian package, in target/package.
deb:
	@packaging/deb.sh

# The sources of the last commit, as archives in target/package: without the crates and with them.
dist:
	@packaging/dist.sh
