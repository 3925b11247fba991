#!/usr/bin/env bash
# Does EasyBuild itself make a module of packaging/easybuild, from the archive of `make dist` without a network? By
# the compiler and the Rust of this machine in place of the easyconfig's toolchain, whose GCC and Rust it
# would build; so without EasyBuild's compiler wrappers, which write the RPATH.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
. xtask/ci/checks.sh
. packaging/common.sh
eb=$(realpath -m -s "${CARGO_TARGET_DIR:-target}/easybuild/bin/eb")
xtask/ci/deps.sh easybuild || { skip "easybuild: it cannot be installed" && counts && exit; }
without=(unshare --user --map-root-user --net)
"${without[@]}" true 2> /dev/null || { skip "easybuild: network namespaces are refused (unshare(2))" && counts && exit; }
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
said=$work/said
config=$work/pinyard-$version.eb
# shellcheck disable=SC1091
set +u && . /etc/profile.d/lmod.sh && set -u
check "make dist" packaging/dist.sh
sed -e "s/^toolchain = .*/toolchain = SYSTEM/" -e '/^builddependencies = \[/,/^\]/d' packaging/easybuild/*.eb > "$config"
makes() {
    env EASYBUILD_PREFIX="$work/made" EB_PYTHON="${eb%/eb}/python" "${without[@]}" "$eb" --sourcepath="$package" --modules-tool=Lmod --parallel="$(nproc)" \
        --module-syntax=Lua --disable-rpath --allow-use-as-root-and-accept-consequences "$config"
}
check "eb builds, installs and checks it" makes
has_module() {
    module use "$work/made/modules/all" && module load "pinyard/$version" && [ "$(command -v pinyard)" != "" ] &&
        pinyard --version && pkg-config --modversion pinyard
}
check "its module has the command and the library" has_module
counts
