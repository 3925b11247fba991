#!/bin/bash
# `pinyard stress` under a real Slurm of two nodes on this machine, started by srun and in a
# batch job.
set -u
cd "$(dirname "$0")/.." || exit 2
here=$PWD/slurm/testbed
target=${CARGO_TARGET_DIR:-$PWD/target}
temporary=$(mktemp -d) || exit 2
said=$temporary/said
. xtask/ci/checks.sh

why=$("$here/slurm.sh" up "$temporary/slurm") || {
    status=$?
    rm -rf "$temporary"
    if [ $status -eq 77 ]; then
        skip "Slurm: $why"
        counts
        exit
    fi
    cannot "start Slurm: $why"
}
trap '"$here/slurm.sh" down "$temporary/slurm"; rm -rf "$temporary"' EXIT
trap 'exit 130' INT TERM
export SLURM_CONF=$temporary/slurm/slurm.conf

build() { limited 900 xtask/ci/build.sh "$1" || cannot "build $1"; }
build release
pinyard=$target/release/pinyard
for mpi in openmpi mpich; do build $mpi; done

folder=$temporary/run
# The nodes have names of their own and the machine's loopback interface. Open MPI 4.1 does not
# choose pt2pt by itself there, and has no other windows over TCP.
export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo OMPI_MCA_osc=pt2pt
export UCX_NET_DEVICES=lo OMPI_MCA_pml=ob1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # for mpirun in a job

few=(--backend io_uring --max-bytes 64K --patience 60)

# step MPI PMI ARGUMENTS...: one rank on each node, bounded.
step() {
    local mpi=$1 pmi=$2
    shift 2
    limited 120 srun --quiet --time 2 -N 2 -n 2 --mpi="$pmi" -K"${on_bad_exit:-1}" \
        "$target/$mpi/release/pinyard-stress" --folder "$folder" "${few[@]}" "$@"
}

# document EXPRESSION: Python, over the JSON document d, that must be true.
document() {
    python3 -c "import json, sys; d = json.load(open('$temporary/run.json')); print(d['verdict']); sys.exit(not ($1))" ||
        { echo "not so: $1"; return 1; }
}

tells() { # PATTERN...: of what is in $temporary/out
    local pattern
    cat "$temporary/out"
    for pattern in "$@"; do
        grep -Eq -- "$pattern" "$temporary/out" || { echo "does not say $pattern"; return 1; }
    done
}

merge() { # STATUS PATTERN...: what is left of the run is judged so, by the book's command
    local wanted=$1 status=0 command
    shift
    command=$(xtask/ci/block.sh docs/src/stress.md merge "DIR=$folder" "stress.html=$temporary/run.html") || return
    # shellcheck disable=SC2317 # of the command
    (pinyard() { limited 60 "$pinyard" "$@" --json "$temporary/run.json"; } && eval "$command") \
        >"$temporary/out" 2>&1 || status=$?
    tells "$@" && [ $status -eq "$wanted" ] && [ -s "$temporary/run.html" ]
}

clean() { # COMMAND...: with 60 steps, its reports where this looks for them
    "$@" >"$temporary/out" 2>&1 || { cat "$temporary/out"; return 1; }
    tells '^Clean' && [ "$(grep -c '^Clean' "$temporary/out")" -eq 1 ] &&
        document 'd["verdict"]["exit"] == 0 and d["launcher"] is None and len(d["ranks"]) == 2' &&
        document '{r["machine"]["host"] for r in d["ranks"]} == {"n1", "n2"}' &&
        document 'all(set(r["operations"]) == {"bcast", "allreduce", "sendrecv", "put", "get"} for r in d["ranks"])' &&
        document 'all(r["counts"]["device_checks"] > 0 for r in d["ranks"])' &&
        document 'sum(r["counts"]["invalidations"] for r in d["ranks"]) > 0' &&
        [ "$(grep -c '<svg' "$temporary/run.html")" -eq 6 ]
}

by_step() { step "$@" --time 20 --steps 60 --json "$temporary/run.json" --report "$temporary/run.html"; }

# As the book tells it, for two ranks and 60 steps.
by_page() {
    local command
    command=$(xtask/ci/block.sh docs/src/stress.md srun -n\ 64=-n\ 2 "DIR=$folder" "stress.json=$temporary/run.json" \
        "stress.html=$temporary/run.html" "pinyard-stress=$target/openmpi/release/pinyard-stress ${few[*]}" '--time 600=--time 20 --steps 60') || return
    # shellcheck disable=SC2317 # of the command
    (srun() { limited 120 "$(type -P srun)" --quiet --time 2 -N 2 "$@"; } && eval "$command")
}

# Ranks that cannot see each other would each be clean, alone.
alone() { # MPI PMI
    # A step that is ended because one rank was may lose the last words of both.
    on_bad_exit=0 step "$1" "$2" --time 2 >"$temporary/out" 2>&1 && { cat "$temporary/out"; return 1; }
    tells 'srun started 2 ranks .*each is alone; name what .* pmi2' && ! grep -q '^Clean' "$temporary/out"
}

killed() {
    step openmpi pmix --time 30 --fault kill-rank --fault-rank 1 --fault-after 2 >"$temporary/out" 2>&1 && { cat "$temporary/out"; return 1; }
    merge 0 'rank 1 was killed at [0-9.]+ s, as asked' 'rank 0 (was lost|was ended by signal)'
}

# As the templates do before the job's time limit: SIGTERM to each rank, which leaves its record.
cancelled() {
    local job='' left=2000
    rm -rf "$folder" # whose progress words are looked at
    step openmpi pmix --time 60 --json "$temporary/run.json" >"$temporary/srun" 2>&1 &
    local runner=$!
    until [ "$(od -An -td8 -j16 -N8 "$folder/rank-1.progress" 2>/dev/null || echo 0)" -gt 5 ] && job=$(squeue -h -o %i); do
        ((left-- > 0)) || { cat "$temporary/srun"; echo "the ranks do not begin"; break; }
        sleep 0.1
    done
    scancel --signal=TERM "$job"
    wait $runner
    cat "$temporary/srun"
    merge 3 'rank 0 was ended by signal 15 at [0-9.]+ s, in' 'rank 1 was ended by signal 15 at [0-9.]+ s, in'
}

# The book's command in a batch job, whose mpirun starts its daemons by srun; the nodes in a file
# besides.
batch() {
    local job state command left=2000
    rm -f "$temporary/out"
    printf 'n1 slots=1\nn2 slots=1\n' >"$temporary/hosts"
    command=$(xtask/ci/block.sh docs/src/stress.md hosts 'pinyard stress=pinyard' -n\ 64=-n\ 2 "DIR=$folder" "FILE=$temporary/hosts") || return
    job=$(sbatch --parsable --time 2 -N 2 -n 2 -o "$temporary/out" --wrap "#!/bin/bash
        pinyard() {
            exec $pinyard stress --time 30 --steps 40 --mpirun mpirun.openmpi --programs $target/openmpi/release ${few[*]} \
                --json $temporary/run.json \"\$@\" --mca plm_slurm_args --mpi=none
        }
        $command") || return 1
    while :; do
        state=$(scontrol -o show job "$job" | grep -o 'JobState=[A-Z]*')
        case $state in *COMPLETED | *FAILED | *TIMEOUT | *CANCELLED | *NODE_FAIL) break ;; esac
        ((left-- > 0)) || { scancel "$job"; break; }
        sleep 0.1
    done
    echo "$state"
    tells '^Clean' && document '{r["machine"]["host"] for r in d["ranks"]} == {"n1", "n2"} and d["launcher"]["success"]'
}

check "Open MPI, srun --mpi=pmix: clean on two nodes, by the book" clean by_page
check "MPICH, srun --mpi=pmi2: clean on two nodes" clean by_step mpich pmi2
check "MPICH, srun --mpi=pmix: refused, each would be alone" alone mpich pmix
rest check "MPICH, srun --mpi=none: likewise" alone mpich none
check "srun, a rank is killed" killed
rest check "scancel: every rank tells what it was in" cancelled
rest check "sbatch, pinyard stress over the job's mpirun" batch

counts
