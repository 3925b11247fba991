#!/usr/bin/env bash
# What `make install` puts somewhere: staged by an ordinary user, moved to another folder,
# and used from there as users do, by every compiler, through pkg-config and through
# CMake, dynamically and statically; the Debian package, and others' recipes.
set -u
cd "$(dirname "$0")/../.." || exit 2
repository=$PWD
. packaging/common.sh
# What c-mpi has built is looked at there.
export WITHOUT_MPI=1
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
said=$work/said
. xtask/ci/checks.sh
chmod 755 "$work"

# In a shell of its own, where a pipeline fails with any of its commands.
piped() { (set -o pipefail && "$@"); }
equal() { diff <(echo "$1") <(echo "$2"); }

packaging/build.sh || cannot "build the package"

# ---- Installing ------------------------------------------------------------------------
stage=$work/stage prefix=/opt/pinyard-test
mkdir "$stage"
# Who has no rights elsewhere.
as_user=()
if [ "$(id -u)" -eq 0 ]; then
    chown nobody "$stage"
    as_user=(setpriv --reuid nobody --clear-groups --regid nogroup)
fi
installer() { "${as_user[@]}" env PREFIX=$prefix DESTDIR="$stage" LIBDIR="${LIBDIR:-lib}" packaging/install.sh "$1"; }
tree() { (cd "$stage$prefix" && find . ! -type d | sed 's|^\./||' | LC_ALL=C sort); }
sums() { (cd "$stage$prefix" && find . -type f -exec sha256sum {} + | sort -k 2); }
if [ -n "${as_user[*]}" ] && ! "${as_user[@]}" test -r "$package/complete"; then
    skip "installing as an ordinary user: nobody may not read $package"
    as_user=()
fi

check "make install" piped installer install
check "it installs what it lists" piped equal "$(packaging/install.sh list | LC_ALL=C sort)" "$(tree)"
check "nothing outside DESTDIR" piped test ! -e $prefix
modes() {
    ! find "$stage$prefix" -type f ! -perm 644 ! -perm 755 | grep . &&
        ! find "$stage$prefix" -type d ! -perm 755 | grep . &&
        equal "$(printf '%s\n' bin/pinyard "lib/libpinyard.so.$version" lib/libpinyard_preload.so libexec/pinyard/{pinyard-bench{,-watched},counted,hook-steps} | LC_ALL=C sort)" \
            "$(cd "$stage$prefix" && find . -type f -perm 755 | sed 's|^\./||' | LC_ALL=C sort)"
}
check "modes" piped modes
links() { [ "$(readlink "$stage$prefix/lib/libpinyard.so")" = libpinyard.so.0 ] && [ "$(readlink "$stage$prefix/lib/libpinyard.so.0")" = "libpinyard.so.$version" ]; }
check "links" piped links
again() { local before after; before=$(sums) && installer install && after=$(sums) && equal "$before" "$after"; }
check "a second time" piped again
check "no path of the build" piped bash -c "! grep -rlF -e '$stage' -e '$repository' '$stage$prefix'/lib/pkgconfig '$stage$prefix'/lib/cmake '$stage$prefix'/include '$stage$prefix'/share"
# Not the words of the page: what a browser and its search load, and that each file it names is there.
has_book() {
    local html=$stage$prefix/$html_to
    grep -q 'id="mdbook-searchbar"' "$html/index.html" && ls "$html"/searchindex*.js && grep -q registration "$html"/searchindex*.js || return
    grep -ohE '(src|href)="[^":#]+["#]' "$html"/*.html | sed 's/^[a-z]*="//; s/.$//' | sort -u | while read -r file; do [ -e "$html/$file" ] || { echo "no $file" && exit 1; }; done
}
check "the book, with a search and all that its pages name" piped has_book
# An older version's page, whose name no list has, is not left.
old_page() { "${as_user[@]}" touch "$stage$prefix/$html_to/old.html" && installer install && [ ! -e "$stage$prefix/$html_to/old.html" ]; }
check "pages of an older version are gone" piped old_page
told() { grep -rhoF "$prefix/$html_to/index.html" "$stage$prefix/share/man/$1" && ! grep -rF '@BOOK@' "$stage$prefix/share"; }
for page in man1/pinyard.1 man3/pinyard.3 man7/pinyard.7; do check "$page says where the book lies" piped told $page; done
uninstalls() {
    "${as_user[@]}" touch "$stage$prefix/lib/of-another"
    installer uninstall && equal lib/of-another "$(tree)" && "${as_user[@]}" rm "$stage$prefix/lib/of-another" && installer install
}
check "make uninstall takes what is pinyard's and no more" piped uninstalls
# shellcheck disable=SC2154 # `word` stands before each check
refused() { ! "$@" 2> "$work/why" && cat "$work/why" && grep -q "$word" "$work/why"; }
word="must begin with /" check "a relative PREFIX is refused" piped refused env PREFIX=opt packaging/install.sh list
word="folder of PREFIX" check "a LIBDIR elsewhere is refused" piped refused env LIBDIR=../lib packaging/install.sh list
library_folder() {
    LIBDIR=lib/x86_64-linux-gnu DESTDIR=$work/multiarch PREFIX=/usr packaging/install.sh install
    PKG_CONFIG_PATH=$work/multiarch/usr/lib/x86_64-linux-gnu/pkgconfig pkg-config --cflags --libs pinyard |
        tee /dev/stderr | grep -F -- "$work/multiarch/usr/lib/x86_64-linux-gnu/pkgconfig/../../../lib/x86_64-linux-gnu"
}
check "LIBDIR of a multiarch system" piped library_folder
# The page's own commands, into another stage. What `make build` runs has been run above, and
# for MPIs in mpi-tests/c/mpi.sh: here, that it is that.
of_page() {
    local block
    block=$(xtask/ci/block.sh docs/src/install.md make /opt/pinyard=/opt/pinyard-page) || return
    STAGE=$work/page TREE=$repository bash -euo pipefail -c '
        make() {
            case $1 in
                build)
                    command make --dry-run -C "$TREE" "$@" > "$STAGE.build"
                    grep -q "^packaging/build.sh" "$STAGE.build" && { [ $# -eq 1 ] || grep -q "packaging/mpi.sh openmpi mpich" "$STAGE.build"; }
                    ;;
                install | uninstall)
                    [ "$1" = install ] || [ -e "$STAGE/opt/pinyard-page/lib/libpinyard.so" ]
                    command make --silent -C "$TREE" -o build DESTDIR="$STAGE" "$@"
                    ;;
            esac
        }
        '"$block" && ! find "$work/page" ! -type d | grep .
}
check "the page: make build, install, uninstall" piped of_page
through_make() { make --silent -f Makefile install -o build PREFIX=/usr DESTDIR="$work/make" && test -f "$work/make/usr/include/pinyard.h"; }
check "make passes PREFIX and DESTDIR on" piped through_make

# The tree is used where it was not installed to.
here=$work/moved
check "the tree is moved" piped mv "$stage$prefix" "$here"
library=$here/lib/libpinyard.so.$version

# ---- The libraries ---------------------------------------------------------------------
declared=$(gcc -fpreprocessed -dD -E "$here/include/pinyard.h" 2> /dev/null | grep -oE '\bpny_[a-z_]+\(' | tr -d '(' | sort -u)
# shellcheck disable=SC2001 # of every line
exports() { equal "$(sed 's/$/@@PINYARD_0.1/' <<< "$declared")" "$(nm -D --defined-only "$library" | awk '$2 == "T" { print $3 }' | LC_ALL=C sort)"; }
check "exports are the header's, each with its version" piped exports
nodes() { equal "libpinyard.so.0 PINYARD_0.1" "$(readelf -V "$library" | sed -n '/version_definition\|gnu.version_d/,/gnu.version_r/s/.*Name: //p' | tr '\n' ' ' | sed 's/ $//')"; }
check "version definitions" piped nodes
check "soname" piped bash -c "readelf -d '$library' | grep -F '[libpinyard.so.0]'"
check "hardened: relro, no executable stack, no relocations in code" piped bash -c "
    readelf -d '$library' | grep BIND_NOW && readelf -lW '$library' | grep GNU_RELRO &&
        readelf -lW '$library' | grep GNU_STACK | grep -v 'E ' && ! readelf -d '$library' | grep TEXTREL"

# Its exit status is the machine's.
doctored() { "$here/bin/pinyard" doctor | tee "$work/output"; grep -Fx "The book: $here/$html_to/index.html" "$work/output"; }
check "doctor prints where the book lies now" doctored
benchmark() { "$here/bin/pinyard" bench --quick cache.strided hooks.watched | tee /dev/stderr | grep -c '4,096'; }
check "the command finds its benchmarks beside it" piped benchmark
# What is counted under valgrind, and what counts itself.
instructions() { "$1/bin/pinyard" bench --quick instructions | tee "$work/output" && grep -Eq '^ *hit: instructions +pinyard +[0-9]' "$work/output" && grep -Eq '^ *steps munmap nothing registered: +pinyard +[0-9]' "$work/output"; }
if command -v valgrind > /dev/null; then check "the command counts instructions" piped instructions "$here"; else skip "instructions: no valgrind"; fi

# ---- Compilers -------------------------------------------------------------------------
export PKG_CONFIG_PATH=$here/lib/pkgconfig
version_of_package() { equal "$version" "$(pkg-config --modversion pinyard)"; }
check "pkg-config: version" piped version_of_package
check "pkg-config: Libs.private" piped bash -c "pkg-config --static --libs pinyard | grep -F -- '${system[*]}'"
warnings=(-Wall -Wextra -Werror -pedantic -O1 -g -D_GNU_SOURCE)
runs() { limited 60 "$@" | tee "$work/output" && grep -q '^completed$' "$work/output"; }
needs_it() { readelf -d "$1" | grep NEEDED | grep -F libpinyard.so.0; }
# NAME LINKAGE COMPILER...: with the flags that pkg-config gives.
through_pkg_config() {
    local output=$work/$1 package=pinyard
    [ "$2" = static ] && package=pinyard-static
    local compiler=("${@:3}")
    # shellcheck disable=SC2046
    "${compiler[@]}" -o "$output" $(pkg-config --cflags --libs $package) || return 1
    if [ "$2" = static ]; then
        ! needs_it "$output" && runs "${launch[@]}" "$output"
    else
        needs_it "$output" && readelf -V "$output" | grep PINYARD_0.1 &&
            LD_LIBRARY_PATH=$here/lib runs "${launch[@]}" "$output"
    fi
}
launch=()
c=("${warnings[@]}" -std=c11) cpp=("${warnings[@]}" -std=c++17)
f2018=(-std=f2018 -Wall -Wextra -Werror -pedantic -O1 -g -J "$work")
for linkage in dynamic static; do
    check "pools $linkage" piped through_pkg_config pools $linkage gcc "${c[@]}" examples/c/pools.c
    check "gcc $linkage" piped through_pkg_config c-gcc $linkage gcc "${c[@]}" examples/c/transport.c
    check "clang $linkage" piped through_pkg_config c-clang $linkage clang "${c[@]}" examples/c/transport.c
    check "g++ $linkage" piped through_pkg_config c-g++ $linkage g++ "${cpp[@]}" -x c++ examples/c/transport.c -x none
    check "C++ g++ $linkage" piped through_pkg_config c++-g++ $linkage g++ "${cpp[@]}" examples/c++/transport.cpp
    check "C++ clang++ $linkage" piped through_pkg_config c++-clang $linkage clang++ "${cpp[@]}" examples/c++/transport.cpp
    # The module is a file of the installation's, compiled by who uses it.
    check "Fortran $linkage" piped through_pkg_config fortran $linkage gfortran "${f2018[@]}" "$here/include/pinyard.f90" examples/fortran/transport.f90
done
# The page's lines, one after the other, in a folder with a program of that name.
lines_of_page() { # block, program
    local block=$1 line folder
    folder=$(mktemp -d "$work/page.XXXXXX") && cp "$2" "$folder/prog.${2##*.}" || return
    while IFS= read -r line; do
        (cd "$folder" && rm -f a.out && bash -euc "$line") && LD_LIBRARY_PATH=$here/lib runs "$folder/a.out" || return
    done <<< "${block:?no block}"
}
check "the page: cc" piped lines_of_page "$(xtask/ci/block.sh docs/src/install.md c)" examples/c/pools.c
check "the README: cc" piped lines_of_page "$(xtask/ci/block.sh README.md c)" examples/c/transport.c
check "the page: gfortran" piped lines_of_page "$(xtask/ci/block.sh docs/src/install.md fortran)" examples/fortran/transport.f90
# As where a site has the static library alone.
only_static() {
    cp -r "$here" "$work/only-static" && rm "$work/only-static/lib/"libpinyard.so* || return 1
    PKG_CONFIG_PATH=$work/only-static/lib/pkgconfig bash -c "gcc ${c[*]} -o $work/alone examples/c/transport.c \$(pkg-config --static --cflags --libs pinyard)" &&
        ! needs_it "$work/alone" && runs "$work/alone"
}
check "gcc with pkg-config --static" piped only_static

# ---- MPI -------------------------------------------------------------------------------
for name in $(compgen -e | grep -E '^(FI_|OMPI_MCA_|LD_PRELOAD$)' || true); do unset "$name"; done
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for mpi in openmpi mpich; do
    if ! command -v mpicc.$mpi > /dev/null; then skip "ring under $mpi: no mpicc.$mpi" && continue; fi
    # shellcheck disable=SC2054 # Open MPI's own commas
    case $mpi in
        openmpi) launch=(mpirun.openmpi --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca btl self,vader --mca pml ob1 -x LD_LIBRARY_PATH -n 2) ;;
        mpich) launch=(mpirun.mpich -n 2) ;;
    esac
    for linkage in dynamic static; do
        check "mpicc.$mpi $linkage" piped through_pkg_config ring-$mpi $linkage mpicc.$mpi -Wall -Wextra -Werror -std=c11 -D_GNU_SOURCE -O1 examples/c/ring.c
    done
done
launch=()

# ---- What is linked with an MPI ---------------------------------------------------------
# Fast where c-mpi has built: they share their folder.
of_mpis() { env -u WITHOUT_MPI PREFIX=$prefix DESTDIR="$work/mpis" packaging/install.sh "$@"; }
mpis=() && for mpi in openmpi mpich; do ! command -v mpicc.$mpi > /dev/null || mpis+=("$mpi"); done
with_mpis() {
    local mpi program
    packaging/mpi.sh "${mpis[@]}" && of_mpis install && of_mpis list > "$work/of-mpis" || return
    for mpi in "${mpis[@]}"; do
        for program in pinyard-stress bcast_gpu pinyard-mpi-probe gpu-bandwidth rounds-{purging,naive,mimalloc}; do
            grep -qx "libexec/pinyard/$mpi/$program" "$work/of-mpis" && [ -x "$work/mpis$prefix/libexec/pinyard/$mpi/$program" ] || return
        done
    done
    mv "$work/mpis$prefix" "$work/moved-mpis"
}
with_moved() { limited 100 env -u PINYARD_PROGRAMS -u PINYARD_MPIRUN PATH="$work/moved-mpis/bin:$PATH" PINYARD_DRIVER=simulated "$@" | tee "$work/output"; }
# By the loader alone, whose libraries are those of their MPI; the tree is elsewhere already.
linked() { # MPI
    local program library
    case $1 in openmpi) library=libmpi.so ;; mpich) library=libmpich.so ;; esac
    for program in "$work/moved-mpis/libexec/pinyard/$1"/*; do
        ldd "$program" | grep -F "$library" && ! ldd "$program" | grep 'not found' && ! readelf -d "$program" | grep -E 'RPATH|RUNPATH' || return
    done
}
stressed() { with_moved pinyard stress --mpirun "mpirun.$1" -n 2 --time 30 --steps 10 --max-bytes 64K --backend io_uring && grep -q '^Clean' "$work/output"; }
# With a README's table at the end, and nothing that is not as it says.
demonstrated() { with_moved pinyard demo --quick --mpirun "mpirun.$1" && grep -q '^Clean' "$work/output"; }
broadcast() {
    with_moved "${launch[@]}" "$work/moved-mpis/libexec/pinyard/$1/bcast_gpu" && [ "$(grep -c 'cells are right' "$work/output")" = 2 ]
}
# Without a GPU the ranks say so themselves.
probed() {
    (set +o pipefail && with_moved pinyard probe --launch "${launch[*]}") 2>&1 | tee "$work/probed"
    grep -Eq 'takes? device pointers|nothing was tried: rank 0: ' "$work/probed"
}
measured() { with_moved pinyard bench mpi.gpu --quick --mpirun "mpirun.$1" && grep -q '^ *mpi.gpu' "$work/output"; }
if [ ${#mpis[@]} -eq 0 ]; then
    skip "programs that are linked with an MPI: neither mpicc.openmpi nor mpicc.mpich"
else
    check "make install: programs for ${mpis[*]}" piped with_mpis
    for mpi in "${mpis[@]}"; do
        launch=("mpirun.$mpi" -n 2)
        [ "$mpi" = mpich ] || launch=(mpirun.openmpi --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n 2)
        check "$mpi: the moved programs are linked with it, and find it" piped linked "$mpi"
        check "$mpi: the moved command finds pinyard-stress" piped stressed "$mpi"
        check "$mpi: the moved command finds what the demo runs" piped demonstrated "$mpi"
        check "$mpi: the moved bcast_gpu" piped broadcast "$mpi"
        check "$mpi: the moved command finds pinyard-mpi-probe" piped probed
        check "$mpi: the moved command finds gpu-bandwidth" piped measured "$mpi"
    done
    launch=()
    ambiguous() { ! with_moved pinyard probe --launch 'srun -n 2' 2> "$work/why" && cat "$work/why" && grep -q 'openmpi or .*/mpich' "$work/why"; }
    [ ${#mpis[@]} -lt 2 ] || check "a launcher of no MPI: both folders are named" piped ambiguous
    taken_away() {
        of_mpis install && [ -e "$work/mpis$prefix/libexec/pinyard/${mpis[0]}" ] && of_mpis uninstall || return
        ! find "$work/mpis$prefix" ! -type d | grep . && [ ! -e "$work/mpis$prefix/libexec/pinyard" ]
    }
    check "make uninstall takes them, and their folders" piped taken_away
    # On most clusters the wrapper has no MPI in its name.
    alone() {
        local tool
        mkdir -p "$work/lone" && ln -sfn "$(command -v "mpicc.${mpis[0]}")" "$work/lone/mpicc" || return
        for tool in bash dirname grep sed gcc cc as ld cat; do ln -sfn "$(command -v $tool)" "$work/lone/$tool"; done
        equal "${mpis[0]} $work/lone/mpicc" "$(env -u MPICC_OPENMPI -u MPICC_MPICH -u MPICC_ABI PATH="$work/lone" bash packaging/mpi.sh list)"
    }
    check "an MPI whose wrapper is mpicc" piped alone
    # In a target folder of its own, which stays empty.
    broken() { CARGO_TARGET_DIR=$work/broken MPICC_OPENMPI=/bin/false MPICC_MPICH=/nowhere MPICC_ABI=/nowhere packaging/mpi.sh "$@" 2>&1 | tee "$work/why"; }
    left_out() { broken && grep -q '^mpi: left out openmpi, .*/bin/false: error: /bin/false compiles no mpi.h' "$work/why"; }
    check "an MPI that cannot be built: left out, with the reason" piped left_out
    demanded() { ! broken all && grep -q 'could not build for openmpi' "$work/why" && ! broken openmpi; }
    check "an MPI that cannot be built, and was named: a failure" piped demanded
fi

# ---- CMake -----------------------------------------------------------------------------
cmakes() { cmake -S mpi-tests/install -B "$work/cmake" -DCMAKE_PREFIX_PATH="$here" -DCMAKE_BUILD_TYPE=Release && cmake --build "$work/cmake"; }
check "CMake configures and builds" piped cmakes
for program in c c++ fortran; do
    check "CMake $program shared" piped runs "$work/cmake/$program-shared"
    check "CMake $program static" piped runs "$work/cmake/$program-static"
    check "CMake $program links what it says" piped bash -c "readelf -d '$work/cmake/$program-shared' | grep -F libpinyard.so.0 && ! readelf -d '$work/cmake/$program-static' | grep -F libpinyard.so"
done
cmake_of_page() {
    local folder=$work/page-cmake
    mkdir "$folder" && cp examples/c/pools.c "$folder/prog.c" &&
        { printf 'cmake_minimum_required(VERSION 3.18)\nproject(page LANGUAGES C)\nadd_executable(prog prog.c)\n' &&
            xtask/ci/block.sh docs/src/install.md cmake; } > "$folder/CMakeLists.txt" &&
        cmake -S "$folder" -B "$folder/build" -DCMAKE_PREFIX_PATH="$here" && cmake --build "$folder/build" && runs "$folder/build/prog"
}
check "the page: CMake" piped cmake_of_page
for wanted in 0.2 1 1.0; do
    word="compatible with requested version" check "CMake: version $wanted is refused" piped refused cmake -S mpi-tests/install -B "$work/cmake-$wanted" -DCMAKE_PREFIX_PATH="$here" -DWANTED=$wanted
done

# ---- The rest of it --------------------------------------------------------------------
without_versions() {
    # Linked with cargo's own library, whose symbols have no versions.
    gcc "${c[@]}" -I src/include -o "$work/unversioned" examples/c/transport.c "${package%/package}/release/libpinyard.so" &&
        ! readelf -V "$work/unversioned" | grep PINYARD_0.1 &&
        LD_LIBRARY_PATH=$here/lib runs "$work/unversioned"
}
check "a program that was linked without versions" piped without_versions
check "the command" piped bash -c "'$here/bin/pinyard' --version | grep -F '$version'"
check "the preload library" piped env LD_PRELOAD="$here/lib/libpinyard_preload.so" /bin/true
manual() {
    local page
    cd "$here/share/man" || return 1 # .so is relative
    for page in man*/*; do
        if man --warnings -l "$page" 2>&1 > /dev/null | grep .; then echo "$page" && return 1; fi
    done
    MANPATH=$here/share/man man pny_get | grep 'pny_status pny_get' && MANPATH=$here/share/man man 1 pinyard-stress | grep -i stress
}
if command -v man > /dev/null; then check "the manual" piped manual; else skip "the manual: no man"; fi

# ---- A Debian package ------------------------------------------------------------------
debian() {
    local deb root=$work/root multiarch
    multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
    deb=$(packaging/deb.sh | tail -n 1) && cp "$deb" "$work/pinyard.deb" || return 1
    dpkg-deb --info "$work/pinyard.deb" && dpkg-deb --field "$work/pinyard.deb" Version | grep -x "$version-1" &&
        dpkg-deb --field "$work/pinyard.deb" Depends | grep 'libc6 (>= ' || return 1
    # Everything is root's, in /usr, and neither writable by others nor set-user-ID.
    dpkg-deb --contents "$work/pinyard.deb" > "$work/contents" || return 1
    if grep -vE '^(drwxr-xr-x|-rw-r--r--|-rwxr-xr-x|lrwxrwxrwx) root/root .* \./(usr/.*)?$|-> ' "$work/contents"; then return 1; fi
    if grep -E 'usr/(local|lib/[^/]*\.(so|a))|/$' "$work/contents" | grep -vE '/$'; then return 1; fi
    grep -q "usr/lib/$multiarch/libpinyard.so.0 -> libpinyard.so.$version" "$work/contents" || return 1
    # Into a system of its own, where it is root that tests.
    if [ "$(id -u)" -eq 0 ]; then
        mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates" && touch "$root/var/lib/dpkg/status" &&
            dpkg --root="$root" --force-depends --install "$work/pinyard.deb" &&
            dpkg --root="$root" --status pinyard | grep 'install ok installed' &&
            dpkg --root="$root" --verify pinyard || return 1
    else
        dpkg-deb --extract "$work/pinyard.deb" "$root" || return 1
    fi
    # shellcheck disable=SC2046
    gcc "${c[@]}" -o "$work/debian" examples/c/pools.c $(PKG_CONFIG_PATH=$root/usr/lib/$multiarch/pkgconfig pkg-config --cflags --libs pinyard) &&
        LD_LIBRARY_PATH=$root/usr/lib/$multiarch runs "$work/debian" &&
        "$root/usr/bin/pinyard" --version && { ! command -v valgrind > /dev/null || instructions "$root/usr"; } && zcat "$root/usr/share/man/man3/pny_get.3.gz" | grep -c pny_pool_alloc || return 1
    if [ "$(id -u)" -eq 0 ]; then
        dpkg --root="$root" --purge pinyard && ! find "$root/usr" ! -type d 2> /dev/null | grep .
    fi
}
if command -v dpkg-shlibdeps > /dev/null; then check "the Debian package" piped debian; else skip "the Debian package: no dpkg-dev"; fi
same_again() { local deb before; deb=$(packaging/deb.sh | tail -n 1) && before=$(sha256sum < "$deb") && [ "$before" = "$(sha256sum < "$work/pinyard.deb")" ]; }
[ ! -e "$work/pinyard.deb" ] || check "the Debian package, made again, is the same" piped same_again

# ---- Recipes of others -----------------------------------------------------------------
mapfile -t listed < <(packaging/install.sh list)
check "Spack and EasyBuild" piped python3 packaging/check_recipes.py "${listed[@]}"

counts
