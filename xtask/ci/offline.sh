#!/usr/bin/env bash
# Does everything compile where there is no network, as in a distribution's build? With the archive of
# `make dist` that has the crates and nothing else, in a network namespace that has no way out; and does
# rpmbuild make packages of it there?
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
. xtask/ci/checks.sh
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
said=$work/said
# A new target folder, so that every build script runs.
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/offline
rm -rf "$target"
without=(unshare --user --map-root-user --net)
"${without[@]}" true 2> /dev/null || { skip "offline: network namespaces are refused (unshare(2))" && counts && exit; }
mapfile -t chosen < <(xtask/ci/build.sh selected)
cut_off() { ! "${without[@]}" bash -c 'exec 3<> /dev/tcp/127.0.0.1/9 || ip route get 192.0.2.1'; }
check "nothing is reached from there" cut_off
. packaging/common.sh
name=pinyard-$version
git rev-parse --quiet --verify HEAD > /dev/null || { skip "offline: no commit to be archived" && counts && exit; }
check "make dist" packaging/dist.sh
archive=$package/$name-vendored.tar.xz
tar -x -C "$work" -f "$archive" || cannot "unpack $archive"
again() { local before; before=$(sha256sum < "$archive") && packaging/dist.sh && [ "$before" = "$(sha256sum < "$archive")" ]; }
check "make dist, again, makes the same archive" again
built() { # what else cargo needs is none of this user's
    (cd "$work/$name" && "${without[@]}" env CARGO_HOME="$work/home" MPICC="${MPICC:-/usr/bin/mpicc.openmpi}" \
        cargo build --quiet --offline --locked --target-dir "$target" "$@")
}
check "libraries, programs and tests" built "${chosen[@]}" --all-targets
check "libraries that are linked with MPI" built -p pinyard-mpi -p pinyard-mpi-c --lib
rm -rf "$target"

macros=(--define "_topdir $work/rpm" --define "_sourcedir $package" --define "_target_cpu $(uname -m)")
# Debian's packages are no rpms: --nodeps. What is installed and in no package is an error (%_unpackaged_files_terminate_build).
packaged() { "${without[@]}" rpmbuild --quiet --nodeps -bb "${macros[@]}" "$work/$name/packaging/rpm/pinyard.spec"; }
works() {
    local root=$work/root package prefix libdir
    prefix=$(rpm --eval '%{_prefix}') libdir=$(rpm --eval '%{_libdir}')
    mkdir "$root" && for package in "$work"/rpm/RPMS/*/*.rpm; do rpm2cpio "$package" | (cd "$root" && cpio --quiet -id) || return 1; done
    # shellcheck disable=SC2046
    "$root$prefix/bin/pinyard" --version && cc -o "$work/pools" examples/c/pools.c $(PKG_CONFIG_PATH=$root$libdir/pkgconfig pkg-config --cflags --libs pinyard) &&
        LD_LIBRARY_PATH=$root$libdir "$work/pools"
}
if command -v rpmbuild > /dev/null; then
    check "rpmbuild" packaged
    check "they work where they are unpacked" works
else
    skip "offline: no rpmbuild"
fi
counts
