#!/usr/bin/env bash
# Installs what is missing on Debian 12: `xtask/ci/deps.sh demo` for the main job,
# `xtask/ci/deps.sh test` for the tests as well, `xtask/ci/deps.sh cluster` for the emulated nodes,
# `xtask/ci/deps.sh newcomer` for the bare root of xtask/ci/newcomer.sh, `xtask/ci/deps.sh easybuild` for EasyBuild.
# Quiet when all is there.
set -euo pipefail

demo=(build-essential pkg-config openmpi-bin libopenmpi-dev libclang-dev)
test=(mpich man-db groff-base libmpich-dev libfabric-dev libibverbs-dev librdmacm-dev libucx-dev libmimalloc-dev libjemalloc-dev
    libgoogle-perftools-dev libtcmalloc-minimal4 valgrind strace clang gfortran cmake dpkg-dev binutils make python3 python3-pip
    gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user slurm-wlm munge shellcheck
    libcap2-bin rpm rpm2cpio cpio xz-utils bpftrace hpcc nodejs python3-numpy python3-mpi4py chromium debootstrap)
# The emulated nodes run this machine's own userland: what they need is installed here.
cluster=(build-essential pkg-config qemu-system-x86 busybox-static kmod xz-utils iproute2 rdma-core ibverbs-providers
    ibverbs-utils libibverbs-dev librdmacm-dev libucx-dev libfabric-dev openmpi-bin libopenmpi-dev python3 python3-pip)

fail() { echo "deps: $*" >&2; exit 1; }

case ${1:-demo} in
    demo) wanted=("${demo[@]}") ;;
    test) wanted=("${demo[@]}" "${test[@]}") ;;
    cluster) wanted=("${cluster[@]}") ;;
    newcomer) wanted=(debootstrap) ;;
    easybuild) wanted=(lmod python3-venv) ;;
    *) fail "usage: xtask/ci/deps.sh demo|test|cluster|newcomer|easybuild" ;;
esac

command -v cargo > /dev/null || fail "no cargo: install Rust 1.89 or newer (rustup.rs or your site's module) and put it on PATH"
command -v dpkg-query > /dev/null || fail "not a Debian system: install the equivalents of: ${wanted[*]}"

# The runner of the unit tests.
if [ "${1:-demo}" = test ] && ! cargo nextest --version > /dev/null 2>&1; then
    echo "deps: installing cargo-nextest"
    cargo install --quiet --locked --debug cargo-nextest --version '^0.9' || fail "cargo could not install cargo-nextest"
fi

missing=()
for package in "${wanted[@]}"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2> /dev/null | grep -qx installed || missing+=("$package")
done
easybuild() {
    local to=${CARGO_TARGET_DIR:-target}/easybuild
    [ "${1:-demo}" != easybuild ] || [ -x "$to/bin/eb" ] ||
        { python3 -m venv "$to" && "$to/bin/pip" --quiet install 'easybuild==5.4.1'; } || fail "pip could not install easybuild"
}
[ ${#missing[@]} -eq 0 ] && { easybuild "$@"; exit; }

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo > /dev/null || fail "missing packages: ${missing[*]}; neither root nor sudo, so ask an administrator to install them"
    as_root=(sudo)
fi
echo "deps: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 "$@" > "$log" 2>&1
}
install update -q || { tail -5 "$log" >&2; fail "apt-get update failed: check the network and /etc/apt/sources.list"; }
install install -y --no-install-recommends "${missing[@]}" || { tail -15 "$log" >&2; fail "apt-get could not install: ${missing[*]}"; }
easybuild "$@"
