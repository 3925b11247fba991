#!/usr/bin/env bash
# Builds the generator and the objects that its programs load, or a program that it has printed:
#
#   mpi-tests/generator/build.sh FOLDER LIBRARY             the generator, against LIBRARY/libpinyard.so
#   mpi-tests/generator/build.sh FOLDER LIBRARY PROGRAM.c   FOLDER/PROGRAM
#
# A program runs as `FOLDER/PROGRAM OBJECTS`, where OBJECTS is the generator's folder.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${1:?usage: build.sh FOLDER LIBRARY [PROGRAM.c]} library=$(cd "${2:?}" && pwd)
here=$root/mpi-tests/generator
compile=("${CC:-cc}" -std=gnu11 -Wall -Wextra -Werror -g -I "$root/src/include" -I "$here")
dynamic=(-L "$library" "-Wl,-rpath,$library" -lpinyard -lpthread)

mkdir -p "$folder"
ln -sf libpinyard.so "$library/libpinyard.so.0"
if [ -n "${3:-}" ]; then
    "${compile[@]}" -O1 "$3" -o "$folder/$(basename "$3" .c)" "${dynamic[@]}"
    exit
fi
object() { # name, arguments of the compiler...
    "${compile[@]}" -shared -fPIC "${@:2}" "$here/object.c" -o "$folder/$1.so"
}
object object-0 -O1 -DSIX
object object-1 -O0 -DTWO
object object-2 -O2 -DTWO
object object-3 -O1 -DCONSTRUCTOR
for number in 0 1 2 3 4 5; do object "memory-$number" -O1; done
"${compile[@]}" -O1 "$here/generator.c" -o "$folder/generator" "${dynamic[@]}"
