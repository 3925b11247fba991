#!/usr/bin/env bash
# One visit to a machine with two GPUs, of at most $BUDGET seconds (480 unless given): the
# driver's tests and the kernels'; every operation on every path with contents checked, on
# the real driver, from Rust, from C and beside cudarc; the examples; and
# Bcast and Allreduce, 4 B to 1 GiB: copied and then MPI's, staged, through IPC handles,
# NCCL's, and in a second run those of an MPI that takes device pointers (Open MPI 5 with
# UCX for CUDA) beside all of these; the other operations, those that do not block, and the
# staged path by its chunks. Takes what xtask/ci/gpu/mpi-carry.sh collected; results
# under $OUT.
#
#   RANKS=4    ranks, each with a GPU of its own as far as there are so many (2)
#   DRY=1      on simulated devices: that it runs, no figures
#   ONLY='soak more'  these steps alone, by their names in machine.txt
#   OWN_MPI=1  the Open MPI that was carried, in place of the machine's
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ -x "$here/gpu-ranks" ] || here=$(cd "$here/../../../carried/mpi" 2> /dev/null && pwd)
out=${OUT:?where to: OUT=folder xtask/ci/gpu/mpi.sh}
budget=${BUDGET:-480} ranks=${RANKS:-2}
if [ ! -x "$here/gpu-ranks" ]; then
    echo "mpi: nothing in carried/mpi: run xtask/ci/gpu/mpi-carry.sh where Rust is" >&2
    exit 1
fi
mkdir -p "$out"
mpirun=$(command -v mpirun || true)
if [ -n "${OWN_MPI:-}" ] || [ -z "$mpirun" ] || ! ldconfig -p | grep -q 'libmpi.so.40 '; then
    export OPAL_PREFIX=$here/openmpi PMIX_PREFIX=$here/openmpi PRTE_PREFIX=$here/openmpi
    export LD_LIBRARY_PATH=$here/openmpi/lib:$here/openmpi/lib/openmpi PATH=$here/openmpi/bin:$PATH
    chmod +x "$here"/openmpi/bin/*
    mpirun=$here/openmpi/bin/mpirun
fi
# What may put GPUs that others share out of service stays off.
export NCCL_NVLS_ENABLE=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# One node: no network is asked for.
export OMPI_MCA_btl=self,sm,vader OMPI_MCA_pml=ob1
# Windows of host memory: the machine's settings leave out the only component of Open MPI 4
# that takes them without a network (MPI_Win_create ends in MPI_ERR_WIN).
"$mpirun" --version 2>&1 | head -1 | grep -q ' 4\.' && export OMPI_MCA_btl=self,vader OMPI_MCA_osc=pt2pt
"$mpirun" --version 2>&1 | head -1 | grep -q ' 5\.' && export OMPI_MCA_btl=self,sm
{
    echo "pinyard $(cat "$here/commit")"
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
    nvidia-smi topo -m | sed 's/\x1b\[[0-9;]*m//g'
    lscpu | grep 'Model name'
    nproc
    uname -r
    echo "$mpirun"
    "$mpirun" --version | head -1
} > "$out/machine.txt" 2>&1
said=$out/said
# shellcheck source=xtask/ci/checks.sh
. "$here/checks.sh"
# alone SECONDS NAME COMMAND...: at most so long, and not beyond the budget; its log is NAME.log.
alone() {
    [[ -n ${ONLY:-} && " $ONLY " != *" $2 "* ]] || check "$2" in_time "$@"
}
in_time() {
    local most=$1 name=$2 began=$SECONDS code=0
    shift 2
    ((most < budget - SECONDS)) || most=$((budget - SECONDS))
    if [ "$most" -lt 5 ]; then
        echo "mpi: no time left for $name" | tee -a "$out/machine.txt"
        return 1
    fi
    limited "$most" "$@" > "$out/$name.log" 2>&1 || code=$?
    tail -15 "$out/$name.log"
    echo "mpi: $name: status $code after $((SECONDS - began)) s" | tee -a "$out/machine.txt"
    return $code
}
# step SECONDS NAME VARIABLE=VALUE...: $program by all ranks.
step() {
    alone "$1" "$2" env "${@:3}" "$mpirun" --oversubscribe --bind-to none -n "$ranks" "${program[@]}"
}
cuda=(--cuda) quick=() device=NVIDIA c_driver=(cuda)
gpus=("$(nvidia-smi -L 2> /dev/null | wc -l)")
[ -n "${DRY:-}" ] && cuda=() quick=(--quick) device=simulated c_driver=() gpus=() && export PINYARD_DRIVER=simulated
chmod +x "$here"/{gpu-*,driver-*,mpi_calls,gpu_bcast,pinyard-mpi-probe}
alone 60 driver-reduction "$here/driver-reduction" --test-threads 1
if [ -z "${DRY:-}" ]; then alone 60 driver-cuda "$here/driver-cuda" --test-threads 1; fi
# Whether this MPI takes device pointers: Debian's does not, and says so by a crash.
probe() { # NAME EXPECTED MPIRUN VARIABLE=VALUE...
    # shellcheck disable=SC2016 # the inner shell's words
    alone 150 "$1" env "${@:4}" XDG_CACHE_HOME="$out/$1-cache" bash -c '"$1" --launch "$2"; code=$?
        echo "status $code"; [[ $code == [$3] ]]' probe "$here/pinyard-mpi-probe" "$3 --oversubscribe --bind-to none -n 2" "$2"
}
[ -n "${DRY:-}" ] || probe probe 1 "$mpirun"
program=("$here/gpu-ranks" "${cuda[@]}")
for path in ipc staged; do
    step 60 "ranks-$path" PINYARD_MPI_PATH=$path PINYARD_MPI_CHUNK_BYTES=65536
done
step 60 ranks-nodes PINYARD_MPI_RANKS_PER_NODE=1 PINYARD_MPI_CHUNK_BYTES=65536
program=("$here/gpu-ranks" "${cuda[@]}" --soak 1000)
step 60 soak PINYARD_MPI_CHUNK_BYTES=1048576
# Two ranks on each of two GPUs.
twice=$((2 * ranks)) once=$ranks
program=("$here/gpu-ranks" "${cuda[@]}")
ranks=$twice
for path in ipc staged; do
    step 60 "ranks-$twice-$path" PINYARD_MPI_PATH=$path PINYARD_MPI_CHUNK_BYTES=65536
done
# As if on two nodes: reductions of each first.
step 60 "ranks-$twice-on-nodes" PINYARD_MPI_RANKS_PER_NODE="$once" PINYARD_MPI_CHUNK_BYTES=65536
program=("$here/gpu-ranks" "${cuda[@]}" --soak 500)
step 60 "soak-$twice" PINYARD_MPI_CHUNK_BYTES=1048576
ranks=$once
for name in bcast_gpu allreduce_gpu halo_exchange; do
    program=("$here/$name")
    step 60 "$name" PINYARD_MPI_CHUNKS=4
    [ -e "$out/$name.log" ] || continue
    check "$name: on the device that it is for" grep "^on device 0 ($device" "$out/$name.log"
done
# From C, on both paths.
export LD_LIBRARY_PATH=$here${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
for path in ipc staged; do
    program=("$here/mpi_calls" big "${c_driver[@]}")
    step 90 "c-calls-$path" PINYARD_MPI_PATH=$path
done
program=("$here/gpu_bcast" "${gpus[@]}")
step 60 c-example PINYARD_MPI_PATH=auto
if [ -z "${DRY:-}" ]; then
    # cuBLAS is CUDA's, or in a wheel of Python's.
    cublas=$(find /usr/local/cuda*/lib64 "$(python3 -c 'import site; print(site.getsitepackages()[0])')" -name 'libcublas.so*' -printf '%h\n' 2> /dev/null | sort -u | paste -sd:)
    program=("$here/gpu-cudarc")
    step 60 cudarc PINYARD_MPI_PATH=auto LD_LIBRARY_PATH="$cublas${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    for path in ipc staged; do
        program=("$here/gpu-cudarc" --reset)
        step 30 "reset-$path" PINYARD_MPI_PATH=$path
        program+=(again)
        step 30 "reset-again-$path" PINYARD_MPI_PATH=$path
    done
fi
program=("$here/gpu-bandwidth" "${quick[@]}")
step 150 bandwidth PINYARD_MPI_CHUNKS=4
# The MPI that takes device pointers, all but a rank's own part of a collective, which it
# copies on the host: the probe may say either.
aware=(-u OMPI_MCA_osc OPAL_PREFIX="$here/openmpi" PMIX_PREFIX="$here/openmpi" PRTE_PREFIX="$here/openmpi"
    LD_LIBRARY_PATH="$here/openmpi/lib:$here/openmpi/lib/openmpi"
    OMPI_MCA_pml=ucx OMPI_MCA_btl=self OMPI_MCA_opal_common_ucx_tls=any
    OMPI_MCA_opal_common_ucx_devices=any UCX_LOG_LEVEL=error "PATH=$here/openmpi/bin:$PATH")
# with_ucx SECONDS NAME ARGUMENT...: under that one.
with_ucx() {
    local mpirun=$here/openmpi/bin/mpirun
    program=("$here/gpu-bandwidth" --aware "${@:3}" "${quick[@]}")
    step "$1" "$2" "${aware[@]}"
}
chmod +x "$here"/openmpi/bin/*
[ -n "${DRY:-}" ] || probe probe-aware 01 "$here/openmpi/bin/mpirun" "${aware[@]}"
with_ucx 150 bandwidth-aware
# The other operations and those that do not block, by our paths alone; then the staged path by
# its chunks.
program=("$here/gpu-bandwidth" --more "${quick[@]}")
step 110 more PINYARD_MPI_CHUNKS=4
with_ucx 45 more-aware --more
program=("$here/gpu-bandwidth" --sweep "${quick[@]}")
step 45 sweep PINYARD_MPI_PATH=staged
for run in bandwidth bandwidth-aware more more-aware sweep; do
    [ -e "$out/$run.log" ] || continue
    grep -ah '^{' "$out/$run.log" > "$out/$run.jsonl"
    echo "$run:"
    grep -ahv '^{' "$out/$run.log"
done | tee "$out/tables.txt"
# One file: there is a limit to how many come back.
(cd "$out" && tar czf logs.tar.gz ./*.log && rm ./*.log)
tar xzOf "$out/logs.tar.gz" --wildcards './soak*.log' 2> /dev/null | grep -a '^soak:' | tee -a "$out/tables.txt"
rm -f "$said" "$said.late"
counts
