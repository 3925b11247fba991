#!/bin/bash
# The templates of slurm/, submitted by sbatch to a real Slurm of two nodes on this machine:
# those that must complete, with their outputs and reports, and those that must fail, which
# must name the node and the cause. QUICK=1: two of each template, and one of each kind of failure.
#
#   slurm/testbed/run.sh [PATTERN]      only the cases whose names have it
set -u
cd "$(dirname "$0")/../.." || exit 2
here=$PWD/slurm/testbed root=$PWD
# shellcheck disable=SC2034 # of check
only=${1:-}
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

# What users have: an installation, for both MPIs, which was put together elsewhere and moved.
prefix=$temporary/moved
install() {
    local folder
    for folder in release openmpi mpich; do limited 900 xtask/ci/build.sh "$folder" || return; done
    BUILT_BEFORE=yes packaging/build.sh && BUILT_BEFORE=yes packaging/mpi.sh openmpi mpich &&
        DESTDIR=$temporary/stage PREFIX=/opt/pinyard LIBDIR=lib packaging/install.sh install && mv "$temporary/stage/opt/pinyard" "$prefix"
}
install > "$said" 2>&1 || cannot "install: $(tail -n 20 "$said")"
mkdir "$temporary/work"
stress_of=$prefix/libexec/pinyard/openmpi/pinyard-stress stress_of_mpich=$prefix/libexec/pinyard/mpich/pinyard-stress
templates=$prefix/share/pinyard/slurm
cd "$temporary/work" || exit 2

# The nodes have names of their own and the machine's loopback interface. Open MPI 4.1 does not
# choose pt2pt by itself there, and has no other windows over TCP.
export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo OMPI_MCA_osc=pt2pt
export UCX_NET_DEVICES=lo OMPI_MCA_pml=ob1 OMPI_MCA_mpi_yield_when_idle=1
# As env.sh does for what the templates start.
export SLURM_PMIX_FENCE=tree
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # for mpirun in a job
export PATH=$PATH:/usr/sbin
few="--steps 20 --max-bytes 64K --patience 60"

# submit TEMPLATE-OR-OPTION...: a job; its number is in $job.
submit() { job=$(sbatch --parsable "$@") || return 1; }

# state JOB: its word, of the last task of an array.
state() { scontrol -o show job "$1" | grep -o 'JobState=[A-Z_]*' | tail -n 1 | cut -d = -f 2; }

# eventually COMMAND...: tries it until it succeeds, 2,000 times at most, 0.1 s apart. A machine under
# load takes its time.
eventually() {
    local left=2000
    until "$@"; do
        ((left-- > 0)) || { echo "never: $*; job $job is $(state "$job")"; return 1; }
        sleep 0.1
    done
}
ended() { [[ $(state "$job") =~ ^(COMPLETED|FAILED|TIMEOUT|CANCELLED|NODE_FAIL)$ ]]; }

running() { [ "$(state "$job")" = RUNNING ]; }

# ends STATUS: waits for $job; it must end with the exit status, or one of STATUS|STATUS. Shows its
# outputs.
ends() {
    local code
    eventually ended || scancel "$job"
    code=$(scontrol -o show job "$job" | grep -o ' ExitCode=[0-9]*' | tail -n 1 | cut -d = -f 2)
    out=$(scontrol -o show job "$job" | grep -o ' StdOut=[^ ]*' | tail -n 1 | cut -d = -f 2)
    folder=$(sed -n 's/^job .*: \(\/.*\)/\1/p' "$out" | head -n 1)
    echo "---- $out"
    cat "$out"
    [ ! -e "$folder/output" ] || { echo "---- $folder/output" && tail -n 40 "$folder/output"; }
    echo "---- exit $code, $1 wanted"
    [[ "|$1|" == *"|$code|"* ]]
}

# tells PATTERN...: each is in a line of Slurm's own output file.
tells() {
    local pattern
    for pattern in "$@"; do
        grep -Eq -- "$pattern" "$out" || { echo "does not tell: $pattern"; return 1; }
    done
}

# document EXPRESSION: Python, over the JSON document d of the run.
document() { python3 -c "import json, sys; d = json.load(open('$folder/run.json')); sys.exit(not ($1))" || { echo "not so: $1"; return 1; }; }

# A program of the user's, which runs on every rank.
program() {
    cat > "$temporary/work/$1" && chmod 755 "$temporary/work/$1"
}
program who << 'PROGRAM'
#!/bin/bash
echo "rank $SLURM_PROCID of $SLURM_NTASKS on $(hostname), arguments: $*, preloaded: $(grep -c 'r-xp.*libpinyard_preload' /proc/self/maps), monitor: ${FI_MR_CACHE_MONITOR:-none}"
PROGRAM
program dies << 'PROGRAM'
#!/bin/bash
[ "$SLURM_PROCID" = 1 ] && kill -"${1:-KILL}" $$
exec sleep 60
PROGRAM
program three << 'PROGRAM'
#!/bin/bash
[ "$SLURM_PROCID" = 0 ] || exit 3
PROGRAM
program falls << 'PROGRAM'
#!/bin/bash
[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 0 ] || { [ "$1" = 3 ] && exit 3 || kill -KILL $$; }
exec sleep 20
PROGRAM
program stays << 'PROGRAM'
#!/bin/bash
# In files: srun may close a step's output before a rank that was told to end has said so. By
# the shell itself: a second SIGTERM would end a command that it starts.
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$SLURM_PROCID}}
trap ': > ended-$SLURM_JOB_ID-$rank; exit 0' TERM
echo $$ > pid-$SLURM_JOB_ID-$rank
echo begun
sleep 100 &
wait
PROGRAM
program bound << 'PROGRAM'
#!/bin/bash
echo "rank $SLURM_PROCID, $SLURM_LOCALID on $(hostname): GPU $CUDA_VISIBLE_DEVICES of $SLURM_STEP_GPUS, NIC ${UCX_NET_DEVICES:-none}, verbs ${FI_VERBS_DEVICE_NAME:-none}"
PROGRAM
program intel << 'PROGRAM'
#!/bin/bash
echo "rank ${PMI_RANK:-none} of ${PMI_SIZE:-none} on $(hostname): library ${I_MPI_PMI_LIBRARY:-none}"
PROGRAM

# in_node NAME COMMAND...: where a node's jobs run.
in_node() { nsenter -t "$(cat "$temporary/slurm/$1.pid")" -m "${@:2}"; }

# ---- What completes ---------------------------------------------------------------------
reports() {
    local status plots
    status=$(cat "$folder/status") plots=$(grep -c '<svg' "$folder/report.html")
    [ "$status:$plots" = 0:6 ] || { echo "status $status, $plots plots"; return 1; }
    document 'd["verdict"]["exit"] == 0' &&
        document '{r["machine"]["host"] for r in d["ranks"]} == {"n1", "n2"}' &&
        grep -q '^{' "$folder/preflight/n1" && grep -q '^{' "$folder/preflight/n2" && tells '^preflight: 2 nodes are alike and fit' '^COMPLETED'
}
host() { # ENVIRONMENT...
    submit --export="ALL,$1" "$templates/host.sbatch" "$2" --time 20 --folder "$temporary/work/ranks-$RANDOM" \
        --json "$3/run.json" --report "$3/report.html" --steps 20 --max-bytes 64K --patience 60 --backend io_uring || return 1
    ends 0 && cp "$3"/* "$folder/" && reports
}
host_default() {
    TIME=2 submit "$templates/host.sbatch" && ends 0 && reports && tells 'job .* on n\[1-2\], 2 ranks, MPI openmpi by srun: '
}
host_with() { # SETTINGS STRESS
    local at
    at=$(mktemp -d -p "$temporary/work")
    host "$1" "$2" "$at"
}
# The installation's own, of the MPI that the job names.
host_of_mpich() {
    MPI=mpich TIME=2 submit "$templates/host.sbatch" && ends 0 && reports && tells ', MPI mpich by srun: '
}
# As for Intel MPI, with the program of the MPICH that stands in for it: the job says so.
host_as_intel() {
    I_MPI_PMI_LIBRARY=/nowhere/libpmi2.so MPI=intel TIME=2 submit "$templates/host.sbatch" && ends 0 && reports &&
        tells ', MPI intel by srun: ' '^MPI of the program: .*/libmpich\.so'
}
# An installation for which no MPI was found.
host_without() {
    mkdir -p "$temporary/alone/bin" && ln -sfn "$prefix/lib" "$temporary/alone/lib" && ln -sf "$prefix/bin/pinyard" "$temporary/alone/bin/" || return 1
    PINYARD_PREFIX=$temporary/alone submit "$templates/$1" && ends 78 && tells "^REFUSED: no .*$2 .*for MPI=openmpi: make install"
}
# One in PATH, as most programs of modules are.
program_in_path() {
    submit "$templates/host.sbatch" hostname && ends 0 && grep -q '^n1' "$folder/output" && grep -q '^n2' "$folder/output"
}
traced() { # SETTINGS STRESS
    host_with "TRACE=yes,$1" "$2" && [ "$(find "$folder/trace" -name '*.trace' | wc -l)" -eq 2 ] && grep -q '</html>' "$folder/trace.html"
}
untraced() {
    TRACE=yes submit "$templates/preload-existing-app.sbatch" ./who && ends 0 && tells '^no rank left a trace: only what links pinyard'
}
own_program() {
    submit "$templates/host.sbatch" ./who one "two three" && ends 0 &&
        grep -q '^rank 0 of 2 on n1, arguments: one two three, preloaded: 0' "$folder/output" &&
        grep -q '^rank 1 of 2 on n2' "$folder/output"
}
stress() {
    BACKEND=io_uring TIME=20 STRESS_OPTIONS=$few submit "$templates/ib-stress.sbatch" && ends 0 && reports &&
        document 'len(d["ranks"]) == 4 and d["verdict"]["backend"] == "io_uring"' && tells '^Clean, backend io_uring' &&
        grep -q '^Clean, backend io_uring' "$folder/output" && grep -q '<b>Clean, backend io_uring</b>' "$folder/report.html"
}
# A test of InfiniBand is not clean where there is none: each node is named, and nothing runs.
no_infiniband() {
    TIME=20 STRESS_OPTIONS=$few submit "$templates/ib-stress.sbatch" && ends 78 &&
        tells '^preflight: n1: no port of InfiniBand or RoCE is active' 'n2: no port of InfiniBand' '^REFUSED: a node is not fit' &&
        ! grep -qE '^(Clean|COMPLETED)' "$out" "$folder/output"
}
# The kernel shows ports, and none opens: no rank begins.
no_verbs() {
    TIME=20 STRESS_OPTIONS=$few submit "$templates/ib-stress.sbatch" && ends 78 && tells '^REFUSED: Could not run' && ! grep -q '^COMPLETED' "$out"
}
# What somebody else has put above a copy of the templates is not run, nor preloaded, and the first
# line says what is. The same above templates whose folder has the installation's name.
planted() {
    local above=$temporary/above
    rm -rf "$above" && mkdir -p "$above/user/copy" "$above/share/pinyard" "$above/bin" "$above/lib" && chmod 1777 "$above" || return 1
    cp -r "$templates" "$above/user/copy/" && cp -r "$templates" "$above/share/pinyard/" || return 1
    printf '#!/bin/bash\ntouch "%s/ran"\nexec "%s/bin/pinyard" "$@"\n' "$above" "$prefix" > "$above/bin/pinyard" || return 1
    printf '#include <stdio.h>\n__attribute__((constructor)) static void loaded(void) { fclose(fopen("%s/ran", "w")); }\n' "$above" |
        gcc -shared -fPIC -x c - -o "$above/lib/libpinyard_preload.so" || return 1
    chmod 755 "$above/bin/pinyard" && chown -R 65534:65534 "$above/bin" "$above/lib" || return 1
    for at in user/copy/slurm share/pinyard/slurm; do
        PATH=$prefix/bin:$PATH submit "$above/$at/preload-existing-app.sbatch" ./who && ends 0 &&
            [ "$(head -n 1 "$out")" = "pinyard: $prefix/bin/pinyard, $prefix/lib/libpinyard_preload.so" ] &&
            grep -q '^rank 1 of 2 on n2, .* preloaded: 1' "$folder/output" && [ ! -e "$above/ran" ] || return 1
    done
    # One of the templates alone, beside an env.sh that somebody else has put there.
    cp "$templates"/*.sbatch "$above/" && printf 'touch "%s/ran"\n' "$above" > "$above/env.sh" && chown 65534 "$above/env.sh" || return 1
    for at in "$above"/*.sbatch; do
        submit --array=1 "$at" ./who && ends 78 && tells "^REFUSED: $above/env.sh belongs to the user 65534" &&
            [ ! -e "$above/ran" ] || return 1
    done
    # The same files, of the user's own: an installation like any other.
    chown -R 0:0 "$above/bin" "$above/lib" && submit "$above/share/pinyard/slurm/host.sbatch" ./who && ends 0 &&
        tells "^pinyard: $above/bin/pinyard, " && [ -e "$above/ran" ] || return 1
    # With somebody else's programs beside the user's own.
    rm "$above/ran" && mkdir -p "$above/libexec/pinyard" && cp -r "$above/bin" "$above/libexec/pinyard/openmpi" &&
        mv "$above/libexec/pinyard/openmpi/pinyard" "$above/libexec/pinyard/openmpi/pinyard-stress" &&
        cp "$prefix/bin/pinyard" "$above/bin/" && chown -R 65534:65534 "$above/libexec" || return 1
    submit "$above/share/pinyard/slurm/host.sbatch" && ends 78 && tells '^REFUSED: no pinyard-stress' && [ ! -e "$above/ran" ]
}
# ours, of the templates: whose a file is. Each template has the same.
what_is_ours() {
    local at=$temporary/ours template
    for template in "$templates"/*.sbatch; do
        cmp <(sed -n '/^# Slurm runs a copy/,/^fi$/p' "$template") <(sed -n '/^# Slurm runs a copy/,/^fi$/p' "$templates/host.sbatch") || return 1
    done
    eval "$(sed -n '/^ours() {$/,/^}$/p' "$templates/host.sbatch")"
    mkdir -p "$at"/{mine,open,group,sticky,theirs/inner} && touch "$at"/{mine/{file,open,group},open/file,group/file,sticky/{file,theirs},theirs/inner/file} || return 1
    ln -s file "$at/mine/link" && ln -s ../open/file "$at/mine/out" && chmod 777 "$at/open" && chmod 666 "$at/mine/open" &&
        chmod 775 "$at/group" && chmod 664 "$at/mine/group" && chgrp 65534 "$at/group" "$at/mine/group" && chmod 1777 "$at/sticky" &&
        chown 65534 "$at/theirs" "$at/sticky/theirs" || return 1
    for file in mine/file mine/link sticky/file; do
        [ "$(ours "$at/$file")" = "$at/${file/link/file}" ] || { echo "not ours: $file"; return 1; }
    done
    for file in mine/open mine/group mine/out open/file group/file sticky/theirs theirs/inner/file mine/none; do
        ! ours "$at/$file" || { echo "ours: $file"; return 1; }
    done
    ours "$at/theirs/inner/file" 65534 && ! ours "$at/theirs/inner/file" 65533 && ! ours "$at/open/file" 65534
}
# A template and its env.sh that another user has put in the place of this user's, while the job
# waited; an env.sh that everybody may write to.
replaced() {
    local at=$temporary/replaced
    mkdir -p "$at" && cp -r "$templates" "$at/slurm" && submit --hold "$at/slurm/host.sbatch" ./who || return 1
    printf 'touch "%s/ran"\n' "$at" > "$at/slurm/env.sh" && chown -R 65534 "$at/slurm" && scontrol release "$job" && ends 78 &&
        tells "^REFUSED: $at/slurm/env.sh belongs to the user 65534" || return 1
    chown -R 0 "$at/slurm" && chmod 666 "$at/slurm/env.sh" && submit "$at/slurm/host.sbatch" ./who && ends 78 &&
        tells "^REFUSED: $at/slurm/env.sh can be changed by other users" && [ ! -e "$at/ran" ]
}
# A pinyard in PATH by a link, and one whose file, or library, others may write to, around the templates.
linked() {
    local at=$temporary/linked
    mkdir -p "$at/bin" "$at/lib" "$at/share/pinyard" && cp -r "$templates" "$at/share/pinyard/" && ln -s "$prefix/bin/pinyard" "$temporary/work/pinyard" &&
        cp "$prefix/bin/pinyard" "$at/bin/" && cp "$prefix/lib/libpinyard_preload.so" "$at/lib/" && chmod 777 "$at/bin/pinyard" || return 1
    PATH=$temporary/work:$PATH submit "$at/share/pinyard/slurm/preload-existing-app.sbatch" ./who && ends 0 &&
        tells "^pinyard: $prefix/bin/pinyard, $prefix/lib/libpinyard_preload.so" || return 1
    chmod 755 "$at/bin/pinyard" && chmod 666 "$at/lib/libpinyard_preload.so" && submit "$at/share/pinyard/slurm/host.sbatch" ./who && ends 78 &&
        tells "^REFUSED: no pinyard in PATH .*$at/lib/libpinyard_preload.so can be changed by other users"
}
# A template's path and its arguments may have the ends of other templates; programs the names of
# the shell's own.
named() {
    local at="$temporary/work/of mine"
    cp -r "$templates" "$at" && mv "$at/host.sbatch" "$at/my job" && cp who other.sbatch &&
        PATH=$prefix/bin:$PATH submit "$at/my job" ./other.sbatch /nowhere/x.sbatch && ends 0 &&
        grep -q '^rank 1 of 2 on n2, arguments: /nowhere/x.sbatch, ' "$folder/output" || return 1
    submit "$templates/host.sbatch" printf 'printed\n' && ends 0 && [ "$(grep -c '^printed' "$folder/output")" = 2 ]
}
# RESULTS that leads out of the user's folders: by a link with a slash behind it, or below a folder
# where everybody may replace it.
results_elsewhere() {
    mkdir -p "$temporary/outside/mine" "$temporary/outside/open" && chmod 777 "$temporary/outside/open" && ln -sfn mine "$temporary/outside/link" || return 1
    RESULTS=$temporary/outside/link/.// submit "$templates/host.sbatch" ./who && ends 78 && tells "^REFUSED: $temporary/outside/link is not a folder of" || return 1
    RESULTS=$temporary/outside/open/one submit "$templates/host.sbatch" ./who && ends 78 && tells "^REFUSED: everybody may replace what is in $temporary/outside/open" &&
        [ -z "$(ls "$temporary/outside/mine")" ] && [ -z "$(ls "$temporary/outside/open")" ]
}
# A folder of the job's name that somebody else has made, with links out of it, or that is a link.
planted_folder() { # links|link|open
    echo mine > "$temporary/work/mine"
    submit --hold "$templates/host.sbatch" ./who || return 1
    folder=$temporary/work/pinyard-host-$job
    mkdir -p "$temporary/elsewhere" && case $1 in
        links) mkdir "$folder" && ln -s "$temporary/work/mine" "$folder/output" && ln -s "$temporary/work/mine" "$folder/status" && chown -h -R 65534:65534 "$folder" ;;
        link) ln -s "$temporary/elsewhere" "$folder" ;;
        open) mkdir -m 777 "$folder" ;;
    esac && scontrol release "$job" && ends 78 &&
        tells "^REFUSED: (everybody may write to )?$temporary/work/pinyard-host-$job" && [ "$(cat "$temporary/work/mine")" = mine ] &&
        [ -z "$(ls "$temporary/elsewhere")" ]
}
own_folder() {
    submit "$templates/host.sbatch" ./who && ends 0 && [ "$(stat -c %a "$folder")" = 700 ] && [ "$(head -n 1 "$out")" = "pinyard: $prefix/bin/pinyard, $prefix/lib/libpinyard_preload.so" ]
}
gpu() {
    GPUS=no submit "$templates/gpu-bcast.sbatch" "$stress_of" --time 20 --steps 10 --folder "$temporary/work/gpu" &&
        ends 0 && tells '^MPI of the program: .*libmpi.so' '  MPI +Open MPI v4' && grep -q '^pinyard .* on n1' "$folder/doctor.txt"
}
# Without a program: bcast_gpu, on a simulated device.
gpu_default() {
    GPUS=no submit "$templates/gpu-bcast.sbatch" && ends 0 && tells '^probe: .' '^COMPLETED' &&
        grep -q 'rank 0: 1048576 cells are right' "$folder/output" && grep -q 'rank 1: 1048576 cells are right' "$folder/output"
}
# As the job's MPI says: the other MPI's build would make each rank a world of its own.
gpu_of_mpich() {
    MPI=mpich GPUS=no submit "$templates/gpu-bcast.sbatch" && ends 0 && tells '^MPI of the program: .*libmpich' '^probe: .' '^COMPLETED' &&
        grep -q 'rank 1: 1048576 cells are right' "$folder/output"
}
gpu_refused() {
    submit "$templates/gpu-bcast.sbatch" && ends 78 && tells 'n1: no NVIDIA GPU .*GPUS=no' 'n2: no NVIDIA GPU' '^REFUSED' &&
        ! grep -q 'cells are right' "$folder/output"
}
# The kernel shows GPUs, and CUDA's driver is not there.
gpu_without_driver() {
    submit "$templates/gpu-bcast.sbatch" || return 1
    # 137: a rank that was ended because the other had given up already.
    ends '1|137' && tells '^FAILED: n[12]: ' && grep -q 'libcuda.so.1' "$folder/output" && ! grep -q 'cells are right' "$folder/output"
}
# Four GPUs, two NICs and a slow one on each node, as the kernel would show them: the first two GPUs
# are below one switch with the first NIC and the slow one, the others with the second NIC.
with_devices() { # COMMAND...
    local node status=0
    for node in n1 n2; do
        # shellcheck disable=SC2016
        in_node $node bash -euc '
            for at in /proc/driver /sys/class /sys/bus; do mount -t tmpfs made-up $at; done
            mkdir -p /sys/bus/pci/devices
            device() { # node, place below its switch
                folder=/sys/class/made-up/pci0000:${1}a/0000:${1}a:00.0/0000:${1}b:00.0/0000:$1$2:00.0
                mkdir -p $folder && echo $1 > $folder/numa_node
            }
            nic() { # name, node, place, rate, link layer
                port=/sys/class/infiniband/$1/ports/1
                mkdir -p $port
                echo "4: ACTIVE" > $port/state; echo "$4" > $port/rate; echo "$5" > $port/link_layer
                device $2 $3 && ln -s $folder /sys/class/infiniband/$1/device
            }
            gpu() { # its number, node, place
                mkdir -p /proc/driver/nvidia/gpus/0000:$2$3:00.0
                printf "Model: \t Made Up\nDevice Minor: \t %s\n" $1 > /proc/driver/nvidia/gpus/0000:$2$3:00.0/information
                device $2 $3 && ln -s $folder /sys/bus/pci/devices/
            }
            nic mlx5_0 0 c "200 Gb/sec (4X HDR)" InfiniBand; nic mlx5_1 1 c "200 Gb/sec (4X HDR)" InfiniBand
            nic manage0 0 f "25 Gb/sec (1X EDR)" Ethernet # as near as mlx5_0, and the first by its name
            gpu 0 0 d; gpu 1 0 e; gpu 2 1 d; gpu 3 1 e' || return 1
    done
    "$@" || status=$?
    for node in n1 n2; do in_node $node umount /proc/driver /sys/class /sys/bus || status=1; done
    return $status
}
# The node's second and third GPU, the first being another job's: each rank has one, and its NIC.
bound() {
    local other status=0 node
    other=$(sbatch --parsable --nodes=2 --ntasks-per-node=1 --gpus-per-node=1 --output=/dev/null --wrap 'sleep 60') || return 1
    job=$other
    eventually running || { scancel "$job"; return 1; }
    env -u UCX_NET_DEVICES sbatch --parsable --gpus-per-node=2 --ntasks-per-node=2 "$templates/gpu-bcast.sbatch" ./bound > job.id &&
        job=$(cat job.id) && ends 0 || status=1
    scancel "$other"
    for node in n1 n2; do
        grep -q ", 0 on $node: GPU 1 of 1,2, NIC mlx5_0:1, verbs mlx5_0$" "$folder/output" &&
            grep -q ", 1 on $node: GPU 2 of 1,2, NIC mlx5_1:1, verbs mlx5_1$" "$folder/output" || status=1
    done
    grep -q 'NUMA distances: mlx5_0 10' "$folder/doctor.txt" || echo "no distances: this machine's firmware gives none"
    return $status
}
# What the user has chosen stays, and BIND=no leaves all to Slurm.
bound_by_user() {
    UCX_NET_DEVICES=mlx5_7:1 submit --gpus-per-node=2 "$templates/gpu-bcast.sbatch" ./bound && ends 0 &&
        grep -q ", 0 on n2: GPU 0 of 0,1, NIC mlx5_7:1, verbs mlx5_0$" "$folder/output" || return 1
    env -u UCX_NET_DEVICES BIND=no sbatch --parsable --gpus-per-node=2 "$templates/gpu-bcast.sbatch" ./bound > job.id && job=$(cat job.id) &&
        ends 0 && grep -q ", 0 on n2: GPU 0,1 of 0,1, NIC none, verbs none$" "$folder/output"
}
# Intel MPI itself is not here: MPICH, whose Hydra and PMI are Intel's as well, stands in for it.
# What is looked at is what the template gives the ranks, and that they find each other so. The
# library is where sites put Slurm's.
intel() {
    local node status=0
    for node in n1 n2; do
        in_node $node bash -euc 'mount -t tmpfs made-up /opt && mkdir -p /opt/slurm/lib && touch /opt/slurm/lib/libpmi2.so' || return 1
    done
    MPI=intel submit "$templates/host.sbatch" ./intel && ends 0 && tells ', MPI intel by srun: ' &&
        grep -q '^rank 0 of 2 on n1: library /opt/slurm/lib/libpmi2.so$' "$folder/output" &&
        grep -q '^rank 1 of 2 on n2: library /opt/slurm/lib/libpmi2.so$' "$folder/output" || status=1
    for node in n1 n2; do in_node $node umount /opt || status=1; done
    return $status
}
intel_by_mpirun() {
    MPI=intel LAUNCH=mpirun MPIRUN=mpirun.mpich submit "$templates/host.sbatch" ./intel && ends 0 && tells ', MPI intel by mpirun: ' &&
        grep -q '^rank 0 of 2 on n1: library none$' "$folder/output" && grep -q '^rank 1 of 2 on n2: library none$' "$folder/output"
}
preload() {
    FI_MR_CACHE_MONITOR=memhooks submit "$templates/preload-existing-app.sbatch" ./who && ends 0 &&
        grep -q '^rank 0 of 2 on n1, .* preloaded: 1, monitor: none' "$folder/output" &&
        grep -q '^rank 1 of 2 on n2, .* preloaded: 1, monitor: none' "$folder/output" &&
        tells '^FI_MR_CACHE_MONITOR=memhooks is taken out' &&
        grep -q '"LD_PRELOAD":' "$folder/preflight/n2"
}
# Open MPI over libfabric's TCP, where the library says what it does.
preload_mpi() {
    OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi OMPI_MCA_mtl_ofi_provider_include='tcp;ofi_rxm' FI_TCP_IFACE=lo \
        submit "$templates/preload-existing-app.sbatch" "$stress_of" --time 20 --steps 10 --folder "$temporary/work/preload" &&
        ends 0 && tells '^2 lines of pinyard' && grep -q '^pinyard: rank 1, pid .*: libfabric 1\.' "$folder/output"
}
soak() {
    local folder
    TIME=20 STRESS_OPTIONS=$few submit --array=1-2%2 "$templates/array-soak.sbatch" && ends 0 &&
        cat "pinyard-soak-$job/summary" && grep -Eq '^seed 1001 status 0 .* Clean' "pinyard-soak-$job/summary" &&
        grep -Eq '^seed 1002 status 0 .* Clean' "pinyard-soak-$job/summary" && [ -s "pinyard-soak-${job}_2/report.html" ]
}

# ---- What does not ----------------------------------------------------------------------
# A node whose jobs may lock 64 KiB.
memlock() {
    "$here/slurm.sh" node "$temporary/slurm" n2 64 || return 1
    submit "$templates/host.sbatch" ./who && ends 78 &&
        tells '^preflight: n2: locked memory is limited to 64 KiB' '^REFUSED: a node is not fit' &&
        ! grep -q '^rank' "$folder/output" && ! grep -q 'n1: locked' "$out" &&
        grep -q 'n2: RLIMIT_MEMLOCK is 64 KiB' "$folder/output" && grep -Eq '^  locked memory  n1  ' "$folder/output"
}
# A node whose jobs are in a cgroup that allows less memory than the job is to have.
cgroup() {
    local pid status=0 group at path file
    pid=$(cat "$temporary/slurm/n2.pid") || return 1
    if path=$(sed -n 's/^[0-9]*:memory://p' "/proc/$pid/cgroup") && [ -n "$path" ]; then
        at=/sys/fs/cgroup/memory file=memory.limit_in_bytes
    else
        path=$(sed -n 's/^0:://p' "/proc/$pid/cgroup") at=/sys/fs/cgroup file=memory.max
    fi
    group=$at${path%/}/pinyard-testbed-$$
    if ! mkdir "$group" || ! echo $((900 << 20)) > "$group/$file" || ! echo "$pid" > "$group/cgroup.procs"; then
        rmdir "$group"
        echo "cannot make $group"
        return 77
    fi
    MEMORY_MIB=1000 submit "$templates/host.sbatch" ./who && ends 78 &&
        tells "^preflight: n2: the cgroup ${path%/}/pinyard-testbed-$$ allows 900 MiB of memory, and 1000 are needed" '^REFUSED: a node is not fit' &&
        ! grep -q 'n1: the cgroup' "$out" && ! grep -q '^rank' "$folder/output" || status=1
    # The daemon goes back, its job's last processes end, and the group goes away.
    echo "$pid" > "$at${path%/}/cgroup.procs"
    for _ in {1..100}; do rmdir "$group" 2> /dev/null && return $status; sleep 0.1; done
    echo "$group has processes still: $(cat "$group/cgroup.procs")"
    return 1
}
memlock_warned() {
    PREFLIGHT=warn submit "$templates/host.sbatch" ./who && ends 0 && tells '^preflight: n2: locked memory' '^COMPLETED'
    local status=$?
    "$here/slurm.sh" node "$temporary/slurm" n2 && return $status
}
# What all nodes have stops nothing, unless it is to.
alike() { FI_MR_CACHE_MONITOR=memhooks submit "$templates/host.sbatch" ./who && ends 0 && tells '^preflight: 2 nodes are alike, and have something to be fixed' '^COMPLETED'; }
alike_refused() {
    FI_MR_CACHE_MONITOR=memhooks PREFLIGHT=fail submit "$templates/host.sbatch" ./who && ends 78 && tells '^REFUSED: a node is not fit' &&
        grep -q '1. n\[1,2\]: FI_MR_CACHE_MONITOR=memhooks does not do what it says' "$folder/output"
}
# The second node does not have the installation's libraries.
no_library() {
    local pid status=0
    pid=$(cat "$temporary/slurm/n2.pid") && mkdir -p "$temporary/empty" &&
        nsenter -t "$pid" -m mount --bind "$temporary/empty" "$prefix/lib" || return 1
    submit "$templates/preload-existing-app.sbatch" ./who && ends 78 &&
        tells "^preflight: n2: there is no $prefix/lib/libpinyard_preload.so" && ! grep -q '^rank' "$folder/output" || status=1
    nsenter -t "$pid" -m umount "$prefix/lib" && return $status
}
# Linked with an MPI that is on no node: its module is not loaded.
no_mpi() {
    mkdir -p "$temporary/gone" && echo 'void nothing(void) {}' | gcc -shared -x c - -o "$temporary/gone/libmpi.so.99" -Wl,-soname,libmpi.so.99 &&
        echo 'void nothing(void); int main(void) { nothing(); }' | gcc -x c - -x none -o lost "$temporary/gone/libmpi.so.99" &&
        rm "$temporary/gone/libmpi.so.99" || return 1
    submit "$templates/host.sbatch" ./lost && ends 78 &&
        tells '^preflight: n1: .*/lost needs libmpi.so.99, which the loader does not find: load the module' 'n2: .*/lost needs libmpi.so.99'
}
no_command() {
    local pid status=0
    pid=$(cat "$temporary/slurm/n2.pid") && mkdir -p "$temporary/empty" &&
        nsenter -t "$pid" -m mount --bind "$temporary/empty" "$prefix/bin" || return 1
    submit "$templates/host.sbatch" ./who && ends 78 &&
        tells "^preflight: n2: there is no $prefix/bin/pinyard" && grep -q 'No answer from n2' "$folder/output" || status=1
    nsenter -t "$pid" -m umount "$prefix/bin" && return $status
}
killed() { submit "$templates/host.sbatch" ./dies && ends 137 && tells "^$("$root"/xtask/ci/block.sh slurm/README.md killed)$" '^FAILED: n2: task 1: Killed' && ! grep -q '^COMPLETED' "$out"; }
# srun says a signal's name, and ends the other ranks by SIGTERM.
signalled() { # SIGNAL STATUS WORDS
    submit "$templates/host.sbatch" ./dies "$1" && ends "$2" && tells "^FAILED: n2: task 1: $3"
}
fails() { submit "$templates/host.sbatch" ./three && ends 3 && tells '^FAILED: n2: task 1: Exited with exit code 3'; }
fails_by_mpirun() { # STATUS SETTINGS PATTERN
    submit --export="ALL,LAUNCH=mpirun,$2" "$templates/host.sbatch" ./falls "$1" && ends "$1" && tells "^FAILED: .*$3"
}
# What an earlier start of the job has left in the output is not its cause.
fails_again() {
    submit --hold --export="ALL,LAUNCH=mpirun,MPI=mpich,MPIRUN=mpirun.mpich" "$templates/host.sbatch" ./falls 9 || return 1
    folder=pinyard-host-$job && mkdir -m 700 "$folder" || return 1
    printf '%s\n' '=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES' '=   PID 11 RUNNING AT n9' '=   EXIT CODE: 7' > "$folder/output"
    scontrol release "$job" && ends 9 && tells '^FAILED: PID [0-9]+ RUNNING AT n[12] EXIT CODE: 9'
}
faulty() {
    BACKEND=io_uring TIME=20 STRESS_OPTIONS="--fault kill-rank --fault-rank 1 --fault-after 1 --max-bytes 64K" \
        submit --ntasks-per-node=1 "$templates/ib-stress.sbatch" && ends 137 &&
        tells '^FAILED: n2: task 1: Killed' && grep -q 'rank 1 was killed at .* as asked' "$folder/output" && [ -s "$folder/report.html" ]
}
refused() { # SETTING PATTERN
    env "$1" sbatch --parsable "$templates/host.sbatch" ./who > job.id && job=$(cat job.id) && ends 78 && tells "^REFUSED: .*$2"
}
# Slurm's own signal before the limit: asked for 45 s before the end of a minute.
limit_begun() { submit --time=1 --signal=B:USR1@45 "$templates/host.sbatch" ./stays && limit=$job; }
limit_ended() {
    job=$limit && ends 75 && tells '^time limit: the ranks get SIGTERM' '^ENDED by the time limit' &&
        [ "$(cat "$folder/status")" = 75 ] && ranks_ended
}
# Waits until two ranks of $job have begun, or as many as are named.
at_work() {
    folder=pinyard-host-$job
    eventually have_begun "${1:-2}"
}
have_begun() { [ "$(grep -c '^begun' "$folder/output" 2> /dev/null)" = "$1" ]; }
ranks_ended() { [ -e "ended-$job-0" ] && [ -e "ended-$job-1" ]; }
ranks_gone() { ! kill -0 "$(cat "pid-$job-0")" 2> /dev/null && ! kill -0 "$(cat "pid-$job-1")" 2> /dev/null; }
# The same signal, sent by hand once the ranks are at work.
limit_of_stress() {
    BACKEND=io_uring TIME=100 STRESS_OPTIONS="--max-bytes 64K" submit --ntasks-per-node=1 "$templates/ib-stress.sbatch" || return 1
    eventually have_done 5
    scancel --batch --signal=USR1 "$job" && ends 75 && tells '^time limit: the ranks get SIGTERM' &&
        document 'len(d["ranks"]) == 2 and d["verdict"]["exit"] == 3' && [ -s "$folder/report.html" ] &&
        grep -q 'rank 1 was ended by signal 15' "$folder/output"
}
have_done() { # STEPS
    [ "$(od -An -td8 -j16 -N8 "pinyard-ib-stress-$job/ranks/rank-1.progress" 2> /dev/null || echo 0)" -gt "$1" ]
}
has_restarted() { scontrol -o show job "$job" | grep -q ' Restarts=1 '; }
requeued() {
    REQUEUE=yes submit "$templates/host.sbatch" ./stays || return 1
    out=pinyard-host-$job.out
    at_work
    scancel --batch --signal=USR1 "$job"
    eventually has_restarted
    cat "$out" "$folder/output"
    scontrol -o show job "$job" | grep ' Restarts=1 ' | grep 'JobState=PENDING' && tells '^time limit: queued again' && ranks_ended || return 1
    # Slurm waits two minutes before it starts such a job again.
    scontrol update JobId="$job" StartTime=now || return 1
    at_work 4
    scancel "$job"
    echo "---- after the second start"
    cat "$out"
    tells '^started again, for the 1. time' && have_begun 4 && [ "$(grep -c '^preflight: 2 nodes' "$out")" = 2 ]
}
# A launcher's own way of telling its ranks.
limit_by_mpirun() { # SETTINGS
    submit --export="ALL,LAUNCH=mpirun,$1" "$templates/host.sbatch" ./stays || return 1
    at_work
    scancel --batch --signal=USR1 "$job" && ends 75 && tells '^time limit: the ranks get SIGTERM' '^ENDED by the time limit' && ranks_ended
}
# As users cancel: Slurm tells the batch shell nothing, and sends the ranks SIGTERM. srun asks for SIGKILL
# as soon as it hears of it (step_launch.c, slurm_step_launch_wait_finish): whether a rank has the time to
# handle SIGTERM is not promised.
cancelled_plainly() {
    submit "$templates/host.sbatch" ./stays || return 1
    at_work
    scancel "$job"
    eventually ended && eventually ranks_gone && [ "$(state "$job")" = CANCELLED ]
}
cancelled() {
    submit "$templates/host.sbatch" ./stays || return 1
    at_work
    scancel --full --signal=TERM "$job" && ends 143 && tells '^ENDED: cancelled'
}
# To the batch shell alone, as a preemption may come.
cancelled_alone() {
    submit "$templates/host.sbatch" ./stays || return 1
    at_work
    scancel --batch --signal=TERM "$job" && ends 143 && tells '^cancelled: the ranks get SIGTERM' '^ENDED: cancelled' && ranks_ended
}
# An installation whose command takes two seconds for what $SLOW names.
slow_prefix() {
    mkdir -p "$temporary/slow/bin" && ln -sfn "$prefix/lib" "$temporary/slow/lib" && cat > "$temporary/slow/bin/pinyard" << END
#!/bin/sh
[ "\$1" != "\$SLOW" ] || { touch "$temporary/work/slow-\$SLURM_JOB_ID"; sleep 2; }
exec "$prefix/bin/pinyard" "\$@"
END
    chmod 755 "$temporary/slow/bin/pinyard"
}
program traces << 'PROGRAM'
#!/bin/bash
mkdir -p "$PINYARD_TRACE" && echo nothing > "$PINYARD_TRACE/rank-$SLURM_PROCID.trace"
exec ./who
PROGRAM
# signal_while COMMAND STATUS PATTERN...: USR1 while the command of that name is at work.
signal_while() {
    local status=$2
    slow_prefix || return 1
    TRACE=yes SLOW=$1 PINYARD_PREFIX=$temporary/slow submit "$templates/host.sbatch" ./traces || return 1
    eventually [ -e "slow-$job" ]
    scancel --batch --signal=USR1 "$job" && ends "$status" && tells "${@:3}"
}
limit_in_preflight() {
    signal_while doctor 75 '^time limit, before the program began' '^ENDED by the time limit' && ! grep -q '^rank 0 of' "$folder/output"
}
# Of a program that has ended well no signal makes anything else.
limit_after_the_end() {
    signal_while report 0 '^COMPLETED' && ! grep -q '^time limit' "$out"
}

# ---- The command and the files ----------------------------------------------------------
# Where there is nothing but what the loader needs.
bare() {
    local root=$temporary/bare file
    mkdir -p "$root/bin"
    cp "$prefix/bin/pinyard" "$root/bin/"
    for file in $(ldd "$prefix/bin/pinyard" | grep -oE '/[^ ]+'); do mkdir -p "$root${file%/*}" && cp "$file" "$root$file"; done
    env -i PATH="$PATH" chroot "$root" /bin/pinyard doctor > bare.txt || [ $? -eq 1 ] || return 1
    cat bare.txt
    env -i PATH="$PATH" chroot "$root" /bin/pinyard doctor --json > bare.json || [ $? -eq 1 ] || return 1
    python3 -m json.tool bare.json > json.txt && [ "$(grep -c 'none found$' bare.txt)" -eq 5 ] && grep -Eq '^(Nothing to fix|[0-9]+ things? to fix)\.$' bare.txt
}
# of_page FOLDER BLOCK: the commands of a page as a user types them, but that each sbatch is
# waited for. Something to be fixed is no failure.
of_page() {
    [ -n "$2" ] && mkdir "$1" && ln -s ../who "$1/who" && ln -s ../bound "$1/program" &&
        (cd "$1" && TIME=2 PATH=$prefix/bin:$PATH bash -euo pipefail -c "$page_words"$'\n'"$2") > "$1.out" 2>&1
    local status=$?
    cat "$1.out"
    return $status
}
# as_shown FOLDER SHOWN: what the page shows of it is what came; the user's home and libraries are here.
as_shown() {
    echo "$2" > "$1.shown" && sed -E 's|(MPI of the program: ).*/|\1/usr/lib/|' "$1.out" > "$1.printed" &&
        "$root"/xtask/ci/shown.py "$1.printed" "$1.shown"
}
# shellcheck disable=SC2016
page_words='sbatch() {
    local id
    id=$(command sbatch --parsable "$@")
    for _ in {1..2000}; do
        ! scontrol -o show job "$id" | grep -qE "JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT)" || return 0
        sleep 0.1
    done
    return 1
}
pinyard() { command pinyard "$@" || [ $? -eq 1 ]; }'
page_first() {
    of_page page-first "$("$root"/xtask/ci/block.sh docs/src/cluster.md first "/usr/local=$prefix" ./my_program=../who ./their_program=../who)" &&
        as_shown page-first "$("$root"/xtask/ci/block.sh --printed docs/src/cluster.md first "/home/me=$PWD/page-first" "/usr/local=$prefix")" &&
        [ "$(cat page-first/slurm/*.out | grep -c '^COMPLETED')" = 3 ] && grep -q '^Nothing to fix\|to fix\.$' page-first.out
}
page_submit() {
    of_page page-submit "$("$root"/xtask/ci/block.sh slurm/README.md submit "/usr/local=$prefix" ./my_program=../who '4711=*')" &&
        as_shown page-submit "$("$root"/xtask/ci/block.sh --printed slurm/README.md submit "/home/me=$PWD/page-submit" "/usr/local=$prefix")" && grep -q '^COMPLETED' page-submit.out
}
page_srun() {
    local block
    for block in "$("$root"/xtask/ci/block.sh docs/src/preload.md srun "/opt/pinyard=$prefix" ./program=./who)" \
        "$("$root"/xtask/ci/block.sh README.md srun "/opt/pinyard=$prefix" ./program=./who)"; do
        rm -rf page-srun
        of_page page-srun "$block" && grep -q '^rank 0 of 1 on n[12], .* preloaded: 1' page-srun.out || return 1
    done
}
# in_job FOLDER BLOCK OPTION...: the same as a batch job.
in_job() {
    local folder=$1 block=$2
    shift 2
    [ -n "$block" ] && mkdir "$folder" && ln -s ../bound "$folder/program" &&
        printf '#!/bin/bash\nset -euo pipefail\n%s\n%s\n' "$page_words" "$block" > "$folder/job" &&
        job=$(cd "$folder" && PATH=$prefix/bin:$PATH sbatch --parsable --output=../"$folder.out" "$@" job) || return 1
    eventually ended
    cat "$folder.out"
    [ "$(state "$job")" = COMPLETED ]
}
page_nodes() {
    in_job page-nodes "$("$root"/xtask/ci/block.sh docs/src/cluster.md nodes 64=2)" --nodes=2 && grep -q '^2 nodes' page-nodes.out &&
        grep -q '^{' page-nodes/answers/n1 && grep -q '^{' page-nodes/answers/n2
}
page_bind() {
    (unset UCX_NET_DEVICES && in_job page-bind "$("$root"/xtask/ci/block.sh docs/src/cluster.md bind)" --nodes=2 --ntasks-per-node=2 --gpus-per-node=2) &&
        grep -q ', 1 on n2: GPU 1 of 0,1, NIC mlx5_0:1, verbs mlx5_0$' page-bind.out
}
page_probe() {
    # shellcheck disable=SC2016
    SLURM_MPI_TYPE=pmix of_page page-probe "$(
        # Without a GPU it says so, and ends with 2.
        echo 'pinyard() { command pinyard "$@" || [ $? -le 2 ]; }'
        "$root"/xtask/ci/block.sh docs/src/gpu-mpi.md probe "/usr/local=$prefix"
    )" && grep -Eq 'takes? device pointers|^pinyard-mpi-probe: nothing was tried: rank 0: no CUDA driver' page-probe.out &&
        grep -q '^MPI and device pointers, as `pinyard probe` has tried' page-probe.out
}
# The one that takes Slurm's own time runs beside the others.
quick || limit_begun
rest check "doctor in a root with nothing installed" bare
check "host.sbatch: the stress test, reports in the job's folder" host_default
check "host.sbatch, MPI=mpich: the installation's program for MPICH" host_of_mpich
rest check "host.sbatch: refused where the installation has no program for the MPI" host_without host.sbatch pinyard-stress
rest check "gpu-bcast.sbatch: refused where the installation has no program for the MPI" host_without gpu-bcast.sbatch bcast_gpu
rest check "host.sbatch: a program of one's own, with arguments" own_program
rest check "host.sbatch: a program in PATH" program_in_path
rest check "host.sbatch, TRACE=yes: a trace of each rank, and the page" traced MPI=openmpi "$stress_of"
rest check "preload-existing-app.sbatch, TRACE=yes: no trace, and why" untraced
rest check "host.sbatch, TRACE=yes, by mpirun" traced LAUNCH=mpirun,MPIRUN=mpirun.openmpi,LAUNCH_OPTIONS="--mca plm_slurm_args --mpi=none" "$stress_of"
rest check "host.sbatch: MPICH, srun --mpi=pmi2" host_with MPI=mpich "$stress_of_mpich"
check "host.sbatch: Open MPI by mpirun" host_with LAUNCH=mpirun,MPIRUN=mpirun.openmpi,LAUNCH_OPTIONS="--mca plm_slurm_args --mpi=none" "$stress_of"
rest check "host.sbatch: MPICH by mpirun (Hydra)" host_with MPI=mpich,LAUNCH=mpirun,MPIRUN=mpirun.mpich "$stress_of_mpich"
check "ib-stress.sbatch: four ranks, clean" stress
check "ib-stress.sbatch: refused where a node has no InfiniBand" no_infiniband
rest check "ib-stress.sbatch: refused where no InfiniBand opens" with_devices no_verbs
check "a pinyard of somebody else's above the templates is not run" planted
check "whose a file is, by its owner, its mode, its folders and links" what_is_ours
check "a template that another user has replaced meanwhile, or may write to: refused" replaced
rest check "a pinyard in PATH by a link; one that others may write to is not run" linked
rest check "a template of another name, in a folder with a space; a program called as a builtin" named
rest check "RESULTS by a link, or below a folder of everybody's: refused" results_elsewhere
rest check "the job's folder is its user's alone" own_folder
check "a folder of somebody else's in its place: refused, and nothing is written" planted_folder links
rest check "a link in its place: refused, and nothing is written" planted_folder link
rest check "a folder in its place that everybody may write to: refused" planted_folder open
rest check "gpu-bcast.sbatch: a program, and what the first node is" gpu
check "gpu-bcast.sbatch: without a program, and a probe before it" gpu_default
rest check "gpu-bcast.sbatch, MPI=mpich: the installation's programs for MPICH" gpu_of_mpich
check "gpu-bcast.sbatch: refused where a node has no GPU" gpu_refused
rest check "gpu-bcast.sbatch: a GPU and no driver of CUDA's" with_devices gpu_without_driver
check "gpu-bcast.sbatch: a part of the node's GPUs, and the NIC next to each" with_devices bound
rest check "gpu-bcast.sbatch: what the user has chosen stays" with_devices bound_by_user
rest check "MPI=intel, without an Intel MPI: Slurm's PMI library is found, every rank gets it" intel
rest check "MPI=intel by mpirun, MPICH's in its place: Hydra, and no library of Slurm's" intel_by_mpirun
rest check "MPI=intel, MPICH in its place: the stress test over PMI2, and whose it is" host_as_intel
check "the book: first steps on a cluster" page_first
rest check "the book: slurm/README.md" page_submit
rest check "the book and the README: the preload library by srun" page_srun
rest check "the book: many nodes side by side" page_nodes
rest check "the book: a GPU and a NIC for each rank" with_devices page_bind
rest check "the book: pinyard probe" page_probe
check "preload-existing-app.sbatch: in every rank, and nowhere else" preload
check "preload-existing-app.sbatch: Open MPI over libfabric" preload_mpi
check "array-soak.sbatch: two runs, one summary" soak
rest check "a cgroup that allows too little memory: the node and the group are named" cgroup
check "locked memory too small on a node: named before anything starts" memlock
check "locked memory too small, PREFLIGHT=warn: said, and started" memlock_warned
rest check "something to be fixed on all nodes alike: said, and started" alike
rest check "something to be fixed on all nodes alike, PREFLIGHT=fail: refused" alike_refused
check "a node without the library: named" no_library
rest check "a node without the command: named" no_command
check "a program whose MPI a node does not find: named" no_mpi
check "a killed rank: the node and the signal" killed
rest check "a rank dies of a segmentation fault: the node and its status" signalled SEGV 139 'Segmentation fault'
rest check "a rank aborts: the node and its status" signalled ABRT 134 Aborted
check "a rank that fails: the node and its status" fails
rest check "a rank that fails, Open MPI by mpirun: which one, and its status" fails_by_mpirun 3 \
    MPIRUN=mpirun.openmpi,LAUNCH_OPTIONS="--mca plm_slurm_args --mpi=none" '(Process name: .*Exit code: 3|ended with status 3)'
# Of a rank that only exits, Hydra says nothing.
rest check "a killed rank after an earlier start, MPICH by mpirun" fails_again
rest check "a killed rank, MPICH by mpirun: the node and its end" fails_by_mpirun 9 \
    MPI=mpich,MPIRUN=mpirun.mpich 'RUNNING AT n2.*EXIT CODE: 9'
rest check "ib-stress.sbatch, a rank is killed: the others' records are a report" faulty
check "an --mpi that this Slurm has not" refused MPI_TYPE=pmix_v9 'no --mpi=pmix_v9'
rest check "an MPI that there is not" refused MPI=lam 'MPI is lam'
rest check "no installation there" refused PINYARD_PREFIX=/nowhere 'no /nowhere/bin/pinyard on n1'
rest check "time limit with REQUEUE=yes: queued again" requeued
rest check "MPI=intel without Slurm's PMI library: refused" refused MPI=intel 'no libpmi2.so'
rest check "time limit, Open MPI by mpirun: its ranks are told" limit_by_mpirun MPIRUN=mpirun.openmpi,LAUNCH_OPTIONS="--mca plm_slurm_args --mpi=none"
rest check "time limit, MPICH by mpirun: its ranks are told" limit_by_mpirun MPI=mpich,MPIRUN=mpirun.mpich
rest check "scancel: said" cancelled
check "scancel of the job: no rank is left" cancelled_plainly
rest check "SIGTERM to the batch shell alone: its ranks are told" cancelled_alone
rest check "time limit during preflight: the program is not begun" limit_in_preflight
rest check "time limit after the program's end: it has completed" limit_after_the_end
rest check "ib-stress.sbatch, time limit: the ranks' records are a report" limit_of_stress
rest check "time limit: the ranks are told, and end" limit_ended

counts
