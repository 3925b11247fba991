# shellcheck shell=bash
# What the templates of this folder share. Not submitted: each template sources it.
#
# ---- Settings: in the environment of sbatch, or edited here ---------------------------
# Where pinyard is installed (bin/pinyard, lib/libpinyard_preload.so). Not set: the
# installation whose share/pinyard/slurm this very folder is, else that of the `pinyard` in PATH.
# A copy of this folder belongs to no installation.
: "${PINYARD_PREFIX:=}"
# The MPI of the program: openmpi, mpich or intel. It decides what srun must speak:
#   openmpi  --mpi=pmix: what Open MPI 4 and 5 are built for; Open MPI 5 knows no other
#   mpich    --mpi=pmi2: what Debian's and most MPICHs, MVAPICHs and Crays are built for
#   intel    --mpi=pmi2, with Slurm's own library in I_MPI_PMI_LIBRARY; tried with MPICH in the
#            place of Intel MPI
# With the wrong one each rank is a world of its own, and a program that does not look
# computes the same thing many times. `srun --mpi=list` says what this Slurm has.
: "${MPI:=openmpi}"
# Another --mpi than that, such as pmix_v4 or cray_shasta.
: "${MPI_TYPE:=}"
# srun, or mpirun: the MPI's own launcher, which starts its daemons by srun. For an MPI
# that was built without Slurm's PMI, or a Slurm without PMIx.
: "${LAUNCH:=srun}"
# The mpirun of LAUNCH=mpirun.
: "${MPIRUN:=mpirun}"
# Further options for the launcher, separated by space.
: "${LAUNCH_OPTIONS:=}"
# yes: each rank gets a GPU of its node in turn, and the NIC next to it.
: "${BIND:=no}"
# yes: every node must have an NVIDIA GPU, and no program simulates one.
: "${GPUS:=no}"
[ "$GPUS" = no ] || export PINYARD_DRIVER=${PINYARD_DRIVER:-cuda}
# yes: every node must have an active port of InfiniBand or RoCE.
: "${NICS:=no}"
# KiB of locked memory that a node must allow, or unlimited, which a cluster with NICs
# should have. Below 64 MiB no registration gets far.
: "${MEMLOCK_KIB:=65536}"
# MiB that the job's cgroup must allow on each node.
: "${MEMORY_MIB:=256}"
# strict: the job ends before its program starts if a node lacks a file or memory that may
# be locked, gives no answer, or has something to be fixed that not all have; fail: also
# if all have it; warn: it says so and goes on; off: no look.
: "${PREFLIGHT:=strict}"
# yes: each rank that links pinyard leaves a trace in the job's folder (PINYARD_TRACE), of
# which trace.html is made at the end. counters: for `pinyard top` alone, while the job runs.
: "${TRACE:=no}"
# What the time limit does after the ranks have been told to end: yes, the job is queued
# again, and begins anew; no, it ends.
: "${REQUEUE:=no}"
# Where the output goes, on a file system that all nodes share: a folder per job, which only its
# owner can enter. One that exists must be the user's own.
: "${RESULTS:=${SLURM_SUBMIT_DIR:-$PWD}/${SLURM_JOB_NAME:-job}-${SLURM_ARRAY_JOB_ID:-${SLURM_JOB_ID:-0}}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}"

# ---- How the job ends ---------------------------------------------------------------
# The program's own status; or
readonly REFUSED=78 # a node is not fit, or something is not there: nothing was started
readonly LIMIT=75   # the time limit came

# Between the two of a job: fd 3 is Slurm's own output file, which has these lines only.
say() {
    echo "$*"
    [ "$collecting" = no ] || echo "$*" >&3
}
collecting=no

refuse() {
    say "REFUSED: $*"
    exit $REFUSED
}

# own_folder FOLDER: makes a folder that only this user can enter, and holds it open as descriptor 4.
# One that exists is taken where it is the user's (a job that was queued again, the tasks of an array):
# files that are written below somebody else's folder may be links to files of this user.
own_folder() {
    local at mode owner
    mkdir -p "${1%/*}" || refuse "no folder for the output: mkdir ${1%/*} failed on $(hostname -s)"
    at=$(readlink -e "${1%/*}")
    while [ -n "$at" ]; do
        read -r owner mode < <(stat -c '%u %a' "$at")
        ((!(0$mode & 02))) || { ((0$mode & 01000)) && case $owner in 0 | "$EUID") ;; *) false ;; esac } ||
            refuse "everybody may replace what is in $at, and nothing is written there: chmod o-w $at, or set RESULTS"
        at=${at%/*}
    done
    if ! mkdir -m 700 "$1" 2> /dev/null; then
        [ -d "$1" ] || refuse "no folder for the output: mkdir $1 failed on $(hostname -s)"
        { [ -O "$1" ] && [ ! -L "$1" ]; } ||
            refuse "$1 is not a folder of $(id -un)'s own, and nothing is written there: remove it, or set RESULTS"
        # Of an array's tasks, one makes it, and the others find it.
        at=$(ours "$1") || [ "${at#"$(readlink -e "$1") "}" = "$at" ] ||
            refuse "$at, and nothing is written there: chmod go-w $1, or set RESULTS"
    fi
    exec 4< "$1"
    # Nobody has put another in its place since.
    { [ -O /proc/self/fd/4 ] && [ "$1" -ef /proc/self/fd/4 ]; } || refuse "$1 has been replaced, and nothing is written there"
}

# begin: makes the job's folder. All output goes there from here on.
begin() {
    case $RESULTS in /*) ;; *) RESULTS=$PWD/$RESULTS ;; esac
    while :; do
        case $RESULTS in
            */..) refuse "RESULTS is $RESULTS, and must end with the name of a folder" ;;
            */ | */.) RESULTS=${RESULTS%/*} ;;
            *) break ;;
        esac
    done
    find_pinyard
    # Before anything of it runs.
    say "pinyard: $pinyard, $preload"
    own_folder "$RESULTS"
    # Kept: what the job wrote before it was queued again.
    exec 3>&1 >> /proc/self/fd/4/output 2>&1
    collecting=yes
    trap finish EXIT
    trap 'limited=yes; interrupted=yes; end_ranks "time limit"' USR1
    trap 'cancelled=yes; interrupted=yes; end_ranks cancelled' TERM
    case $MPI in
        openmpi) mpi_type=${MPI_TYPE:-pmix} ;;
        mpich) mpi_type=${MPI_TYPE:-pmi2} ;;
        intel)
            mpi_type=${MPI_TYPE:-pmi2}
            # Intel MPI speaks PMI through the library that this names.
            local folder file
            for folder in /usr/lib64 /usr/lib/x86_64-linux-gnu /usr/lib/x86_64-linux-gnu/slurm /opt/slurm/lib; do
                for file in "$folder"/libpmi2.so "$folder"/libpmi2.so.0; do
                    [ -z "${I_MPI_PMI_LIBRARY:-}" ] && [ -e "$file" ] && export I_MPI_PMI_LIBRARY=$file
                done
            done
            # Each rank would be a world of its own.
            [ "$LAUNCH" = mpirun ] || [ -n "${I_MPI_PMI_LIBRARY:-}" ] ||
                refuse "no libpmi2.so of Slurm's on $(hostname -s): set I_MPI_PMI_LIBRARY to it, or LAUNCH=mpirun"
            ;;
        *) refuse "MPI is $MPI, and must be openmpi, mpich or intel" ;;
    esac
    # With its other way of bringing ranks together, by which it chooses between tree and ring, a rank
    # may leave MPI_Init while another has not begun to listen: that one crashes (docs/src/cluster.md).
    case $mpi_type in pmix*) export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-tree} ;; esac
    case $PREFLIGHT in strict | fail | warn | off) ;; *) refuse "PREFLIGHT is $PREFLIGHT, and must be strict, fail, warn or off" ;; esac
    case $LAUNCH in srun | mpirun) ;; *) refuse "LAUNCH is $LAUNCH, and must be srun or mpirun" ;; esac
    case $TRACE in
        no) ;;
        yes | counters) export PINYARD_TRACE=$RESULTS/trace ;;
        *) refuse "TRACE is $TRACE, and must be yes, counters or no" ;;
    esac
    [ "$TRACE" != counters ] || export PINYARD_TRACE_EVENTS=0
    ranks=${SLURM_NTASKS:-$((SLURM_JOB_NUM_NODES * ${SLURM_NTASKS_PER_NODE:-1}))}
    say "job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, $ranks ranks, MPI $MPI by $LAUNCH: $RESULTS"
    [ "${SLURM_RESTART_COUNT:-0}" -eq 0 ] || say "started again, for the ${SLURM_RESTART_COUNT}. time"
}

# Who may have put files into the installation, beside root and this user: a user's number, or anybody
# where PINYARD_PREFIX is the user's word.
whose=0

# installed FILE: the real path of what the installation has there, unless others may have put it there.
installed() {
    if [ "$whose" != anybody ]; then
        ours "$PINYARD_PREFIX/$1" "$whose"
    else
        [ -e "$PINYARD_PREFIX/$1" ] && echo "$PINYARD_PREFIX/$1"
    fi
}

# installed_library: the preload library of the installation; where there is none, why.
installed_library() {
    local folder why=none
    for folder in lib lib64 "lib/$(uname -m)-linux-gnu"; do
        [ -e "$PINYARD_PREFIX/$folder/libpinyard_preload.so" ] || continue
        why=$(installed "$folder/libpinyard_preload.so") && echo "$why" && return
    done
    echo "$why"
    return 1
}

# find_pinyard: what runs on every node comes from the user's word, from the installation whose
# templates these are, or from PATH. Folders above a copy of the templates are anybody's.
find_pinyard() {
    local own why
    preload=''
    if [ -n "$PINYARD_PREFIX" ]; then
        whose=anybody pinyard=$PINYARD_PREFIX/bin/pinyard
        [ -x "$pinyard" ] || refuse "no $pinyard on $(hostname -s): set PINYARD_PREFIX to where pinyard is installed"
        preload=$(installed_library) || preload=$PINYARD_PREFIX/lib/libpinyard_preload.so
        return
    fi
    own=$(cd "${PINYARD_SLURM:-.}" 2> /dev/null && pwd -P)
    case $own in
        */share/pinyard/slurm)
            PINYARD_PREFIX=${own%/share/pinyard/slurm}
            pinyard=$(installed bin/pinyard) && [ -x "$pinyard" ] && preload=$(installed_library) && return
            why=", and what is installed around the templates is not taken (${preload:-$pinyard})"
            ;;
    esac
    # This very file, wherever a link in PATH leads: one of a third user, such as an account for
    # software, as well. What is beside it may be that user's, too.
    pinyard=$(type -P pinyard) || refuse "no pinyard in PATH on $(hostname -s)${why:-}: set PINYARD_PREFIX to where it is installed"
    pinyard=$(readlink -e "$pinyard")
    whose=$(stat -c %u "$pinyard") PINYARD_PREFIX=${pinyard%/*}
    case $PINYARD_PREFIX in
        */bin) PINYARD_PREFIX=${PINYARD_PREFIX%/bin} ;;
        # Of no installation.
        *) PINYARD_PREFIX=/nonexistent ;;
    esac
    preload=$(installed_library) || preload="no library: $preload"
}

# ---- Before the program starts ------------------------------------------------------
# On each node: a line beginning with !! for each thing that would end the job later, and
# what doctor sees. Runs in a shell of its own there, with nothing but its arguments.
# node_check PINYARD MEMLOCK_KIB MEMORY_MIB GPUS NICS FILE...
node_check() {
    local node pinyard=$1 least=$2 memory=$3 gpus=$4 nics=$5 file limit folder bytes absent
    node=$(hostname -s)
    shift 5
    for file in "$pinyard" "$@"; do
        case $file in /*) ;; *) file=$PWD/${file#./} ;; esac
        [ -r "$file" ] || echo "!! $node: there is no $file"
        absent=$(ldd "$file" 2> /dev/null | awk '/=> not found/ { print $1 }' | sort -u | paste -sd ' ')
        [ -z "$absent" ] || echo "!! $node: $file needs $absent, which the loader does not find: load the module of its MPI before sbatch, or set LD_LIBRARY_PATH"
    done
    limit=$(ulimit -l)
    # CAP_IPC_LOCK, bit 14 of the effective set: the limit does not bind.
    local capabilities
    capabilities=$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)
    if [ "$limit" != unlimited ] && { [ "$least" = unlimited ] || [ "$limit" -lt "$least" ]; } && ! ((0x${capabilities:-0} >> 14 & 1)); then
        echo "!! $node: locked memory is limited to $limit KiB (ulimit -l), and $least is needed: set LimitMEMLOCK=infinity in slurmd's unit and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf"
    fi
    # The first where the driver's module is loaded, the second in containers.
    if [ "$gpus" != no ] && ! compgen -G '/proc/driver/nvidia/gpus/*' > /dev/null && [ ! -e /dev/nvidiactl ]; then
        echo "!! $node: no NVIDIA GPU (no /proc/driver/nvidia/gpus, no /dev/nvidiactl), and each node is to have one: ask for such nodes (--gpus-per-node, --partition, --constraint), or set GPUS=no, with which bcast_gpu simulates one"
    fi
    if [ "$nics" != no ] && ! grep -qs ACTIVE /sys/class/infiniband/*/ports/*/state; then
        echo "!! $node: no port of InfiniBand or RoCE is active (/sys/class/infiniband), and each node is to have one: ask for such nodes (--partition, --constraint), or test without them: BACKEND=io_uring"
    fi
    # The lowest limit from the job's cgroup (version 2, or 1) up.
    local path controllers base
    while IFS=: read -r _ controllers path; do
        case ,$controllers, in
            ,,) base=/sys/fs/cgroup file=memory.max ;;
            *,memory,*) base=/sys/fs/cgroup/memory file=memory.limit_in_bytes ;;
            *) continue ;;
        esac
        folder=$path
        while :; do
            bytes=$(cat "$base$folder/$file" 2> /dev/null) || bytes=max
            if [ "$bytes" != max ] && [ ${#bytes} -lt 18 ] && [ $((bytes >> 20)) -lt "$memory" ]; then
                echo "!! $node: the cgroup $folder allows $((bytes >> 20)) MiB of memory, and $memory are needed: ask for more with --mem"
                break
            fi
            case $folder in '' | /) break ;; esac
            folder=${folder%/*}
        done
    done < /proc/self/cgroup
    # As the program will be started.
    [ ! -r "${DOCTOR_PRELOAD:-}" ] || export LD_PRELOAD=$DOCTOR_PRELOAD
    [ ! -x "$pinyard" ] || "$pinyard" doctor --job || [ $? -eq 1 ] || echo "!! $node: $pinyard doctor failed"
}

# path_of PROGRAM: where it is, as the ranks' PATH says, for one that has no path of its own.
path_of() { type -P -- "$1" || echo "$1"; }

# preflight FILE...: looks at every node; the files must be there on each.
preflight() {
    [ "$PREFLIGHT" != off ] || return 0
    local status=0 answers=$RESULTS/preflight expected causes
    expected=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tr '\n' ,)
    if [ "$LAUNCH" = srun ] && ! srun --mpi=list 2>&1 | grep -qwF -- "$mpi_type"; then
        refuse "this Slurm has no --mpi=$mpi_type (srun --mpi=list): set MPI_TYPE, or LAUNCH=mpirun"
    fi
    rm -rf "$answers"
    mkdir -p "$answers" || refuse "no folder for the preflight: mkdir $answers failed on $(hostname -s)"
    # A file for each node: in one, long lines of two nodes would be mixed. A node that
    # cannot even start a shell is told by srun, by name.
    srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --mpi=none --kill-on-bad-exit=0 \
        --output="$answers/%N" --error="$answers/%N" \
        bash -c "$(declare -f node_check); node_check \"\$@\"" node_check "$pinyard" "$MEMLOCK_KIB" "$MEMORY_MIB" "$GPUS" "$NICS" "$@" \
        2> "$answers.srun" || status=1
    "$pinyard" doctor --compare "$answers"/* --expect "$expected"
    case $? in
        0) say "preflight: $SLURM_JOB_NUM_NODES nodes are alike and fit" ;;
        3) say "preflight: the nodes differ, see the table in $RESULTS/output" ;;
        1)
            say "preflight: $SLURM_JOB_NUM_NODES nodes are alike, and have something to be fixed, see $RESULTS/output"
            [ "$PREFLIGHT" != fail ] || status=1
            ;;
        *) status=1 ;;
    esac
    causes=$(grep -hE '^(!! |srun: error: )' "$answers"/* "$answers.srun" | sed 's/^!! //' | sort -u | head -n 20)
    [ $status -ne 0 ] || [ -n "$causes" ] || return 0
    say "preflight: ${causes:-$(tail -n 1 "$RESULTS/output") See $RESULTS/output}"
    [ "$PREFLIGHT" = warn ] || refuse "a node is not fit for the job, and nothing was started; PREFLIGHT=warn starts it all the same"
}

# program_of NAME: where a program is that is linked with the job's MPI. An installation has one
# for each MPI that there was; one in bin or PATH is for the site's only MPI, and abi's runs with
# any MPI that has the standard ABI of MPI 5.0.
program_of() {
    local found of=$MPI
    # Intel MPI's interface, and its library's name, are those of MPICH.
    [ "$MPI" != intel ] || of=mpich
    for found in "$(installed "libexec/pinyard/$of/$1")" "$(installed "bin/$1")" "$(type -P "$1")" "$(installed "libexec/pinyard/abi/$1")"; do
        [ ! -x "$found" ] || { echo "$found"; return; }
    done
    return 1
}

# tell_mpi PROGRAM: the library that this node's loader gives it, which is the MPI that is used
# whatever MPI= says.
tell_mpi() {
    local mpi
    mpi=$(ldd "$1" 2> /dev/null | awk '/libmpi(ch|_abi)?\.so/ { print $3; exit }')
    say "MPI of the program: ${mpi:-none that it is linked with}"
}

# stress_program: where the program of the stress test is.
stress_program() {
    if [ -n "${STRESS:-}" ] && [ -x "$STRESS" ]; then echo "$STRESS"; else program_of pinyard-stress; fi
}
# shellcheck disable=SC2034 # of the templates
no_stress="no pinyard-stress for MPI=$MPI: make install puts one there for each MPI that it finds; or build it with the MPI of the job (cargo build --release -p pinyard-mpi-tests --features verbs), and set STRESS to its path"

# verdict: the last word of a stress test in the output, with its first reason.
verdict() {
    grep -E -A 1 '^(Clean|WRONG BYTES|Could not run|Ended badly)' "$RESULTS/output" | tail -n 2 | paste -sd ' ' | tr -s ' '
}

# end_stress STATUS: says the verdict, and ends with the run's status, or as a job that was refused
# where no rank could begin.
end_stress() {
    local verdict
    verdict=$(verdict)
    case $verdict in
        'Could not run'*) refuse "$verdict" ;;
        ?*) say "$verdict" ;;
    esac
    exit "$1"
}

# ---- The program --------------------------------------------------------------------
limited=no cancelled=no interrupted=no started=no step=''

# end_ranks WHY: every rank gets SIGTERM; what it makes of it is its own: pinyard-stress
# writes its record. USR1 comes before the limit, see --signal in the template; TERM to this
# shell alone is `scancel --batch` or a preemption. Of a job that is being cancelled Slurm has
# told the ranks, and refuses to do it again.
end_ranks() {
    if [ -z "$step" ]; then
        say "$1, before the program began"
        return
    fi
    say "$1: the ranks get SIGTERM"
    case $LAUNCH in
        srun) scancel --signal=TERM "$SLURM_JOB_ID" 2> /dev/null ;;
        mpirun) kill -TERM "$step" ;;
    esac
}

# run PROGRAM ARGUMENT...: on all ranks. Returns its status; says which node and why if
# it is not 0.
run() {
    local status=0 options=() traced=() began
    # During preflight: the program is not begun, and `finish` says why.
    [ "$limited$cancelled" = nono ] || exit "$LIMIT"
    # Open MPI's launcher hands on no variable that it is not told.
    [ "$TRACE" = no ] || traced=(-x PINYARD_TRACE)
    [ "$TRACE" != counters ] || traced+=(-x PINYARD_TRACE_EVENTS)
    read -ra options <<< "$LAUNCH_OPTIONS"
    # shellcheck disable=SC2016
    [ "$BIND" != yes ] || set -- bash -c 'set -a; bound=$("$0" doctor bind) || exit; eval "$bound"; set +a; exec "$@"' "$pinyard" "$@"
    began=$(wc -l < "$RESULTS/output")
    case $LAUNCH:$MPI in
        srun:*) set -- srun --mpi="$mpi_type" --kill-on-bad-exit=1 "${options[@]}" "$@" ;;
        mpirun:openmpi) set -- "$MPIRUN" -n "$ranks" --map-by node "${traced[@]}" "${options[@]}" "$@" ;;
        # Hydra, MPICH's and Intel's.
        mpirun:*) set -- "$MPIRUN" -bootstrap slurm -n "$ranks" "${options[@]}" "$@" ;;
    esac
    "$@" &
    step=$! started=yes
    # A signal ends `wait`, and not what it waits for.
    while :; do
        interrupted=no
        wait "$step"
        status=$?
        [ "$interrupted" = yes ] || break
    done
    step=''
    # What the job ends with is known: a signal from here on changes nothing.
    trap '' USR1 TERM
    [ $status -eq 0 ] || [ "$limited" = yes ] || cause $status "$began"
    return $status
}

# cause STATUS LINE: what the launcher said of the first rank that failed, after a line of
# the output. Makes `status` that rank's own: srun's is now this rank's and now that of one
# that srun ended for it.
cause() {
    local said line
    # Not what an earlier start of the job has said.
    said=$(tail -n +"$(($2 + 1))" "$RESULTS/output")
    line=$(grep -m 1 -E '^srun: error: .*: (task|tasks) [0-9,-]+: |^(mpirun|prterun) noticed that process rank|^ *Process name: |BAD TERMINATION' <<< "$said" |
        sed 's/^srun: error: //')
    # Two launchers say it in several lines: Hydra the node and the end below its banner, Open
    # MPI's the status below a rank's name.
    case $line in
        *'BAD TERMINATION'*) line=$(grep -m 3 -oE 'PID [0-9]+ RUNNING AT [^ ]+|EXIT CODE: [0-9]+|KILLED BY SIGNAL: [^=]*' <<< "$said" | paste -sd ' ') ;;
        *'Process name: '*) line=$(grep -m 2 -oE 'Process name: .*|Exit code: .*' <<< "$said" | tr -s ' ' | paste -sd ' ') ;;
    esac
    case $line in
        *'Exited with exit code '*) status=${line##* } ;;
        # srun's words for signals, "(core dumped)" behind them or not.
        *': Killed'*) status=137 ;;
        *': Hangup'*) status=129 ;;
        *': Interrupt'*) status=130 ;;
        *': Quit'*) status=131 ;;
        *': Illegal instruction'*) status=132 ;;
        *': Aborted'*) status=134 ;;
        *': Bus error'*) status=135 ;;
        *': Floating point exception'*) status=136 ;;
        *': Segmentation fault'*) status=139 ;;
        *': Broken pipe'*) status=141 ;;
        *': Alarm clock'*) status=142 ;;
        *': Terminated'*) status=143 ;;
        *': CPU time limit exceeded'*) status=152 ;;
        # Hydra's own status is now the rank's and now that of its proxies.
        *'EXIT CODE: '[0-9]*) status=${line##*EXIT CODE: } && status=${status%% *} ;;
    esac
    say "FAILED: ${line:-the program ended with status $1}"
}

# The last line, and what is to be done after it.
finish() {
    local status=$?
    trap - EXIT
    trap '' USR1 TERM
    if [ "$TRACE" = yes ] && compgen -G "$PINYARD_TRACE/*.trace" > /dev/null; then
        "$pinyard" report "$PINYARD_TRACE" -o "$RESULTS/trace.html"
    elif [ "$TRACE" = yes ] && [ "$started" = yes ]; then
        say "no rank left a trace: only what links pinyard writes one, not the preload library"
    fi
    if [ "$limited" = yes ]; then
        status=$LIMIT
        if [ "$REQUEUE" = yes ]; then
            say "time limit: queued again"
            echo "$status" > /proc/self/fd/4/status
            scontrol requeue "$SLURM_JOB_ID" || say "scontrol requeue failed: the job ends here"
            exit $status
        fi
        say "ENDED by the time limit of the job; --time=… or REQUEUE=yes gives it more"
    elif [ "$cancelled" = yes ]; then
        say "ENDED: cancelled"
        status=143
    elif [ $status -eq 0 ]; then
        say "COMPLETED"
    fi
    echo $status > /proc/self/fd/4/status
    exit $status
}
