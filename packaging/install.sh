#!/usr/bin/env bash
# `packaging/install.sh install|uninstall|list`: puts what packaging/build.sh made under
# $DESTDIR$PREFIX, takes it away again, or says what that is. PREFIX, DESTDIR and LIBDIR
# (a folder of PREFIX) come from the environment. Writes nowhere else, needs no more
# rights than the folders do, and may be run again.
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
. packaging/common.sh
umask 022

prefix=${PREFIX:-/usr/local} lib=${LIBDIR:-lib} destination=${DESTDIR:-}
case $prefix in /*) ;; *) fail "PREFIX is $prefix, and must begin with /" ;; esac
case $lib in /* | *..* | '') fail "LIBDIR is ${lib:-empty}, and must be a folder of PREFIX, such as lib64" ;; esac
case $destination in '' | /*) ;; *) destination=$here/$destination ;; esac
prefix=${prefix%/}
root=${destination%/}$prefix

# A line for each file: its mode (or the page that it names), where it comes from ("->" and a name: a link to that;
# "=" and a name: filled in by `fill`), and where it goes. Nothing has a tab in its name.
entries() {
    local file name
    entry() { printf '%s\t%s\t%s\n' "$@"; }
    entry 755 "$package/pinyard" bin/pinyard
    for name in "${bench_programs[@]}"; do entry 755 "$package/$name" "libexec/pinyard/$name"; done
    entry 755 "$package/libpinyard.so.$version" "$lib/libpinyard.so.$version"
    entry link "libpinyard.so.$version" "$lib/libpinyard.so.$soname"
    entry link "libpinyard.so.$soname" "$lib/libpinyard.so"
    entry 644 "$package/libpinyard.a" "$lib/libpinyard.a"
    entry 755 "$package/libpinyard_preload.so" "$lib/libpinyard_preload.so"
    for file in pinyard.pc pinyard-static.pc; do entry fill "$file" "$lib/pkgconfig/$file"; done
    for name in $(mpis); do
        entry 755 "$package/libpinyard_mpi_$name.so.$version" "$lib/libpinyard_mpi_$name.so.$version"
        entry link "libpinyard_mpi_$name.so.$version" "$lib/libpinyard_mpi_$name.so.$soname"
        entry link "libpinyard_mpi_$name.so.$soname" "$lib/libpinyard_mpi_$name.so"
        entry fill pinyard-mpi.pc "$lib/pkgconfig/pinyard-mpi-$name.pc"
        for file in "${mpi_programs[@]}"; do entry 755 "$package/$name/$file" "libexec/pinyard/$name/$file"; done
    done
    for file in pinyard-config.cmake pinyard-config-version.cmake; do entry fill "$file" "$lib/cmake/pinyard/$file"; done
    for file in src/include/*.h src/include/*.hpp src/include/*.f90; do
        wanted "$file" && entry 644 "$file" "include/${file##*/}"
    done
    for file in "$package"/man/*.1 packaging/man/*.[37]; do
        wanted "$file" && entry manual "$file" "share/man/man${file##*.}/${file##*/}"
    done
    for name in $(functions pinyard); do entry pinyard "$name" "share/man/man3/$name.3"; done
    if [ -n "$(mpis)" ]; then
        for name in $(functions pinyard_mpi); do entry pinyard_mpi "$name" "share/man/man3/$name.3"; done
    fi
    for file in README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT; do
        [ -e "$file" ] && entry 644 "$file" "share/doc/pinyard/${file##*/}"
    done
    [ ! -d "$html" ] || (cd "$html" && find . -type f | sed 's|^\./||') | while read -r file; do entry 644 "$html/$file" "$html_to/$file"; done
    for file in examples/c/* examples/c++/* examples/fortran/*; do
        [ -f "$file" ] && entry 644 "$file" "share/doc/pinyard/$file"
    done
    # Ready to be copied and edited.
    for file in slurm/*.sbatch slurm/env.sh slurm/README.md; do [ -e "$file" ] && entry 644 "$file" "share/pinyard/$file"; done
    return 0
}
functions() { sed -n 's/^\t\(pny_[a-z0-9_]*\);$/\1/p' "packaging/lib$1.map"; }
# Those that packaging/mpi.sh has built for, programs and all; none with WITHOUT_MPI set. What is to
# be taken away may be of any, whatever was built since.
mpis() {
    if [ -n "$uninstall" ]; then
        printf '%s\n' abi mpich openmpi
    elif [ -z "${WITHOUT_MPI:-}" ]; then
        local name
        for name in abi mpich openmpi; do
            if [ -e "$package/libpinyard_mpi_$name.so.$version" ] && [ -e "$package/$name/${mpi_programs[-1]}" ]; then echo "$name"; fi
        done
    fi
}
uninstall=
wanted() { [ -e "$1" ] && { [[ $1 != */pinyard_mpi.[h3] ]] || [ -n "$(mpis)" ]; }; }
wrapper_of() { case $1 in abi) echo mpicc_abi ;; *) echo "the mpicc of $1" ;; esac; }
# Folders that are pinyard's own, the inner ones first.
folders=("$lib/cmake/pinyard" libexec/pinyard/{abi,mpich,openmpi} libexec/pinyard share/doc/pinyard/examples/c share/doc/pinyard/examples/c++
    share/doc/pinyard/examples/fortran share/doc/pinyard/examples share/doc/pinyard share/pinyard/slurm share/pinyard)

# From the folder of the template's place to PREFIX: what makes the tree movable.
fill() { # template, place
    local up major minor mpi=${2##*pinyard-mpi-}
    mpi=${mpi%.pc}
    up=$(dirname "$2" | sed 's|[^/][^/]*|..|g')
    IFS=. read -r major minor _ <<< "$version"
    sed -e "s|@UP@|$up|" -e "s|@LIB@|$lib|g" -e "s|@VERSION@|$version|g" -e "s|@SONAME@|$soname|g" \
        -e "s|@MPI@|$mpi|g" -e "s|@WRAPPER@|$(wrapper_of "$mpi")|g" -e "s|@MAJOR@|$major|g" -e "s|@MINOR@|$minor|g" -e "s|@SYSTEM@|$(system_for "$1")|g" "packaging/$1.in"
}
# CMake separates by semicolons, and knows libraries without -l.
system_for() { case $1 in *.cmake) local IFS=';' && echo "${system[*]#-l}" ;; *) echo "${system[*]}" ;; esac; }

put() { # mode, source, place
    local to=$root/$3
    mkdir -p "${to%/*}"
    case $1 in
        link) ln -sfn "$2" "$to" ;;
        fill) fill "$2" "$3" | whole 644 "$to" ;;
        manual) sed "s|@BOOK@|$prefix/$html_to/index.html|g" "$2" | whole 644 "$to" ;;
        pinyard | pinyard_mpi) echo ".so man3/$1.3" | whole 644 "$to" ;;
        # A copy beside it that is renamed: a library in use is not written over.
        *) whole "$1" "$to" < "$2" ;;
    esac
}
whole() {
    local new=$2.new.$$
    install -m "$1" /dev/stdin "$new" && mv -f "$new" "$2"
}

case ${1:-} in
    install)
        [ -e "$package/complete" ] || fail "nothing is built: run packaging/build.sh, or make build"
        # Another version's pages have other names.
        rm -rf "${root:?}/$html_to"
        entries | while IFS=$'\t' read -r mode from to; do put "$mode" "$from" "$to"; done
        echo "installed $(entries | wc -l) files under $root"
        [ -n "$destination" ] || [ "$(id -u)" -ne 0 ] || ldconfig 2> /dev/null || true
        ;;
    uninstall)
        uninstall=yes
        entries | while IFS=$'\t' read -r _ _ to; do rm -f "$root/$to"; done
        rm -rf "${root:?}/$html_to"
        for folder in "${folders[@]}"; do rmdir "$root/$folder" 2> /dev/null || true; done
        echo "removed from $root"
        ;;
    list) entries | cut -f 3 ;;
    *) fail "usage: packaging/install.sh install|uninstall|list" ;;
esac
