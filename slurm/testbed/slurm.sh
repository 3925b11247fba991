#!/bin/bash
# A small real Slurm on this machine: a controller and two nodes that have host names of
# their own, with a munge and ports of their own. Traffic stays on loopback.
#
#   slurm.sh up FOLDER      its configuration is FOLDER/slurm.conf (SLURM_CONF)
#   slurm.sh down FOLDER    ends it; what is in FOLDER stays
#   slurm.sh node FOLDER NAME KIB    starts a node anew: its jobs may lock KIB of memory, and
#                           have not the capability to lock more; without KIB as at first
#
# Exits with 77, and one line that says why, where that cannot be had.
set -uo pipefail
readonly nodes="n1 n2"
usage() { sed -n '2,10p' "$0"; exit 2; }
[ $# -ge 2 ] || usage
command=$1
mkdir -p "$2" || exit 1
folder=$(readlink -f "$2")

cannot() { echo "$*"; exit 77; }

# The file of a daemon's process id.
pid_file() { echo "$folder/$1.pid"; }

# Ends a daemon by its own pid, and only if that is still one of this folder.
end() { # NAME
    local pid
    pid=$(cat "$(pid_file "$1")" 2> /dev/null) && grep -qsF "$folder" "/proc/$pid/cmdline" || return 0
    kill "$pid"
    for _ in {1..50}; do
        [ -d "/proc/$pid" ] || return 0
        sleep 0.1
    done
    kill -KILL "$pid"
}

# Jobs first: what their steps run would outlive the daemons.
down() {
    local name end=$((SECONDS + 15))
    export SLURM_CONF=$folder/slurm.conf
    if timeout 5 squeue --noheader --format %i > "$folder/jobs" 2> /dev/null && [ -s "$folder/jobs" ]; then
        xargs timeout 5 scancel --signal=KILL --full < "$folder/jobs" 2> /dev/null
        xargs timeout 5 scancel < "$folder/jobs" 2> /dev/null
        while [ -n "$(timeout 5 squeue --noheader 2> /dev/null)" ] && ((SECONDS < end)); do sleep 0.2; done
    fi
    for name in $nodes ctld munged; do end "$name"; done
}

free_ports() { # COUNT
    python3 -c "
import socket
held = [socket.socket() for _ in range($1)]
for one in held: one.bind(('127.0.0.1', 0))
print(*(one.getsockname()[1] for one in held))"
}

up() {
    local tool host controller ports=() node at=0
    for tool in slurmctld slurmd srun munged unshare python3; do
        command -v "$tool" > /dev/null || cannot "$tool is not there: xtask/ci/deps.sh test installs it"
    done
    [ "$(id -u)" -eq 0 ] || cannot "the nodes' daemons need root"
    unshare -m -u true 2> /dev/null || cannot "unshare -m -u is refused: no host names for the nodes"
    # What the nodes' jobs may lock, as on a cluster.
    ulimit -l unlimited 2> /dev/null
    # A process's own address on the loopback interface, whatever the host's name leads to.
    host=$(hostname -s)
    mkdir -p "$folder"/{state,log,pmix} || exit 1
    # munge trusts no socket below a folder that others can write to, unless told so.
    (umask 077 && head -c 32 /dev/urandom > "$folder/key") || exit 1
    munged --force --key-file="$folder/key" --socket="$folder/munge" --pid-file="$(pid_file munged)" \
        --log-file="$folder/log/munged" --seed-file="$folder/seed" 2> "$folder/log/munged.start" ||
        { cat "$folder/log/munged.start"; exit 1; }
    read -ra ports <<< "$(free_ports 3)"
    controller=${ports[0]}
    {
        cat << CONF
ClusterName=pinyard
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$(pid_file ctld)
SlurmdPidFile=$folder/%n.pid
SlurmctldLogFile=$folder/log/ctld
SlurmdLogFile=$folder/log/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
MpiDefault=none
GresTypes=gpu
PropagateResourceLimitsExcept=MEMLOCK
ReturnToService=2
KillWait=30
SlurmdParameters=config_overrides
CONF
        for node in $nodes; do
            at=$((at + 1))
            echo "NodeName=$node NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[at]} CPUs=4 RealMemory=1000 Gres=gpu:4"
        done
        echo "PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP"
    } > "$folder/slurm.conf"
    touch "$folder/cgroup.conf"
    # GPUs to ask for; Slurm wants a device of each, counts by the number in its name, and does
    # not open it.
    mkdir -p "$folder/gpus"
    for at in 0 1 2 3; do ln -sf /dev/zero "$folder/gpus/nvidia$at"; done
    echo "Name=gpu File=$folder/gpus/nvidia[0-3]" > "$folder/gres.conf"
    # The nodes' names, for launchers that look them up.
    { cat /etc/hosts; for node in $nodes; do echo "127.0.0.1 $node"; done; } > "$folder/hosts"
    echo "PMIxCliTmpDirBase=$folder/pmix" > "$folder/mpi.conf"
    export SLURM_CONF=$folder/slurm.conf
    slurmctld -c -i -f "$SLURM_CONF" > "$folder/log/ctld.start" 2>&1 || { cat "$folder/log/ctld.start"; exit 1; }
    for node in $nodes; do start "$node"; done
    await
}

# start NODE COMMAND...: its daemon, by way of a command.
start() {
    local node=$1
    shift
    mkdir -p "$folder/spool.$node"
    # PMIx of one machine and user has one folder, which the nodes may not share.
    unshare -m -u "$@" bash -c "mount -t tmpfs none '$folder/pmix' && mount --bind '$folder/hosts' /etc/hosts && hostname $node && exec slurmd -N $node -f '$SLURM_CONF'" \
        > "$folder/log/$node.start" 2>&1 || { cat "$folder/log/$node.start"; exit 1; }
}

# Until both nodes answer.
await() {
    local end=$((SECONDS + 60))
    until [ "$(sinfo -h -t idle -o %D 2> /dev/null)" = 2 ]; do
        if ((SECONDS > end)); then
            echo "the nodes are not idle after 60 s:"
            sinfo -N
            tail -n 5 "$folder"/log/*
            exit 1
        fi
        sleep 0.1
    done
}

# restart NAME [KIB]
restart() {
    local limit=()
    # Both need capabilities that the daemon is then without.
    [ -z "${2:-}" ] || limit=(bash -c "ulimit -l $2 && exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock \"\$@\"" restart)
    export SLURM_CONF=$folder/slurm.conf
    end "$1"
    start "$1" "${limit[@]}"
    # Until the controller has heard of the new one, the old one is idle as well.
    scontrol update nodename="$1" state=resume 2> /dev/null
    await
}

case $command in
up)
    trap '[ $? -eq 0 ] || down' EXIT
    up
    ;;
node) restart "${3:?}" "${4:-}" ;;
down) down ;;
*) usage ;;
esac
