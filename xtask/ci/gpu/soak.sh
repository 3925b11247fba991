#!/usr/bin/env bash
# mpi-tests/soak/run.sh for an hour in ten minutes, on a machine with many cores and without Rust: a run
# for each two cores. No GPU is used.
#
#   xtask/ci/gpu/soak.sh carry    here: collects the programs and the allocators in carried/soak
#   xtask/ci/gpu/soak.sh          there: writes to $OUT
#
# SECONDS_EACH  a run of each program (250); every allocator has two, glibc one
set -euo pipefail
cd "$(dirname "$0")/../../.."
folder=carried/soak
if [ "${1:-}" = carry ]; then
    target=${CARGO_TARGET_DIR:-target}
    PINYARD_SOAK_SECONDS=1 mpi-tests/soak/run.sh mimalloc3
    rm -rf "$folder" && mkdir -p "$folder/lib"
    cp "$target"/release/soak-{glibc,mimalloc2,mimalloc3,jemalloc,tcmalloc} "$target/release/libpinyard-soak-mimalloc3.so" "$folder/"
    strip --strip-debug "$folder"/soak-*
    for name in libmimalloc.so.2 libjemalloc.so.2 libtcmalloc_minimal.so.4 libstdc++.so.6 libgcc_s.so.1; do
        cp -L "$(ldconfig -p | awk -v name="$name" '$1 == name && /x86-64/ { print $NF; exit }')" "$folder/lib/$name"
    done
    exit
fi
out=${OUT:?}
export LD_LIBRARY_PATH=$PWD/$folder/lib PINYARD_SOAK_PROGRAMS=$PWD/$folder PINYARD_SOAK_SECONDS=${SECONDS_EACH:-250}
allocators=(glibc mimalloc2 mimalloc3 jemalloc tcmalloc)
said=$out/said
. xtask/ci/checks.sh
runs=$(($(nproc) / 2)) began=$SECONDS
pids=()
for ((run = 0; run < runs; run++)); do
    mpi-tests/soak/run.sh "${allocators[run % ${#allocators[@]}]}" > "$out/soak-$run" 2>&1 &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || true; done
# What each has counted; one without a count has failed.
for ((run = 0; run < runs; run++)); do
    include "$(tail -n 1 "$out/soak-$run")" || check "soak $run comes to its end" false
done
{
    uname -r
    ldd --version | sed -n 1p
    cat "$out"/soak-*
    echo "$((SECONDS - began)) s on $(nproc) cores, $runs runs at a time"
} | tee "$out/soak.txt"
rm -f "$out"/soak-[0-9]* "$said" "$said.late"
counts
