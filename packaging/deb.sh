#!/usr/bin/env bash
# `make deb`: one binary package of what `make install` installs, in target/package. As an
# ordinary user. One package, not the runtime, development and tools ones of an archive:
# it is for machines of one's own.
set -euo pipefail
cd "$(dirname "$0")/.."
. packaging/common.sh

for tool in dpkg-deb dpkg-shlibdeps dpkg-architecture strip; do
    command -v $tool > /dev/null || fail "no $tool: apt-get install dpkg-dev binutils"
done
packaging/build.sh
arch=$(dpkg-architecture -qDEB_HOST_ARCH) multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
# Alike for alike sources.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || stat -c %Y Cargo.toml)}
export SOURCE_DATE_EPOCH
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
root=$work/pinyard
mkdir -p "$root/DEBIAN" "$work/debian"
chmod 755 "$root" "$root/DEBIAN"
# Without libpinyard_mpi, which would make the package depend on every MPI.
WITHOUT_MPI=1 PREFIX=/usr LIBDIR=lib/$multiarch DESTDIR=$root packaging/install.sh install > /dev/null
lib=$root/usr/lib/$multiarch doc=$root/usr/share/doc/pinyard

# What Debian wants of a package.
packaging/strip.sh "$root/usr" "lib/$multiarch"
chmod 644 "$lib"/*.so.* "$lib"/*_preload.so
find "$root/usr/share/man" -type f -exec gzip -9n {} +
for page in "$root"/usr/share/man/man3/pny_*.3.gz; do ln -sf pinyard.3.gz "$page"; done
{
    printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: pinyard\n\n'
    printf 'Files: *\nCopyright: the pinyard contributors\nLicense: MIT or Apache-2.0\n\nLicense: MIT\n'
    sed 's/^$/./; s/^/ /' LICENSE-MIT
    printf '\nLicense: Apache-2.0\n See /usr/share/common-licenses/Apache-2.0.\n'
} > "$doc/copyright"
rm "$doc"/LICENSE-*
gzip -9nc CHANGELOG.md > "$doc/changelog.gz" && rm "$doc/CHANGELOG.md"

cat > "$work/debian/control" << CONTROL
Source: pinyard

Package: pinyard
Architecture: any
CONTROL
depends=$(cd "$work" && dpkg-shlibdeps -O --warnings=0 -e"$root/usr/bin/pinyard" -e"$root/usr/libexec/pinyard/pinyard-bench" -e"$lib/libpinyard.so.$version" -e"$lib/libpinyard_preload.so" | sed 's/^shlibs:Depends=//')
cat > "$root/DEBIAN/control" << CONTROL
Package: pinyard
Version: $version-1
Section: libs
Priority: optional
Architecture: $arch
Maintainer: ${DEB_MAINTAINER:-pinyard contributors <root@localhost>}
Installed-Size: $(du -k -s --apparent-size "$root/usr" | cut -f 1)
Depends: $depends
Suggests: libfabric1, libibverbs1, libucx0, pkg-config
Description: memory that stays registered for MPI programs
 A registration cache for memory that a network card or a GPU uses, which no
 allocator can hang and that marks what a change of a mapping makes stale, and
 pools of memory that is registered once.
 .
 This package has the library for C, C++ and Fortran, shared and static, the
 preload library for unmodified programs, and the command pinyard with its
 benchmarks.
CONTROL
echo "libpinyard $soname pinyard (>= $version)" > "$root/DEBIAN/shlibs"
echo "activate-noawait ldconfig" > "$root/DEBIAN/triggers"
(cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum > DEBIAN/md5sums)
chmod 644 "$root"/DEBIAN/*
deb=$package/pinyard_$version-1_$arch.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$deb" > /dev/null
echo "$deb"
