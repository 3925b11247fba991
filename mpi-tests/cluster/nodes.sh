#!/bin/bash
# A cluster of emulated nodes, each with a Soft-RoCE device rxe0:
#
#   nodes.sh up N                   boots node0 to node(N-1)
#   nodes.sh exec NODE COMMAND...   its output and its exit status
#   nodes.sh down                   ends them, and removes the share
#
# CLUSTER   the folder with the kernel (build.sh)
# SHARE     a folder that the nodes write to; its path is short, for Unix sockets
# LIMIT     seconds that an exec may take (default 60)
# RXE_CPU   qemu's processor (default Nehalem)
# LIFE      seconds after which a node is ended that nobody has ended (default 1200)
#
# exec ends with 124 where the command took too long, and 125 where the node died.
# Inside a node it is mpirun's launch agent, in the place of ssh.
set -uo pipefail
# Not by its real path: the nodes' commands are split at spaces, and a link may have none.
here=$(cd "$(dirname "$0")" && pwd)
: "${SHARE:?}"
limit=${LIMIT:-60}

# boot INDEX COUNT: node 0 is the hub of one Unix-socket wire for each other node.
# shellcheck disable=SC2054 # qemu's own commas
boot() {
    local i=$1 n=$2 j wires=()
    if ((i == 0)); then
        wires=(-netdev hubport,id=h0,hubid=0)
        ((n > 1)) || wires=(-netdev user,id=h0,restrict=on)
        for ((j = 1; j < n; j++)); do
            wires+=(-netdev "stream,id=w$j,server=on,addr.type=unix,addr.path=$SHARE/wire$j"
                -netdev "hubport,id=p$j,hubid=0,netdev=w$j")
        done
    else
        wires=(-netdev "stream,id=h0,server=off,addr.type=unix,addr.path=$SHARE/wire$i")
    fi
    # Nehalem: has x86-64-v2 and nothing that this emulation was seen to get wrong.
    # no_timer_check, lpj: on a busy host the kernel's own look at its timers ends in a panic.
    # The time limit ends what a killed caller leaves behind.
    timeout -s KILL "${LIFE:-1200}" qemu-system-x86_64 -accel tcg,thread=multi -cpu "${RXE_CPU:-Nehalem}" -smp 1 -m 1G \
        -nodefaults -no-user-config -display none -no-reboot -serial "file:$SHARE/node$i/console" \
        -kernel "$CLUSTER/vmlinuz" -initrd "$CLUSTER/initrd.gz" \
        -append "console=ttyS0 quiet panic=-1 nokaslr mitigations=off no_timer_check lpj=4000000 random.trust_cpu=on node=$i nodes=$n share=$SHARE" \
        -virtfs "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap" \
        -virtfs "local,path=$SHARE,mount_tag=share,security_model=none" \
        "${wires[@]}" -device "virtio-net-pci,netdev=h0,mac=52:54:00:12:34:0$i,romfile=" \
        -device virtio-rng-pci > "$SHARE/node$i/qemu" 2>&1 < /dev/null &
    echo $! > "$SHARE/node$i/pid"
}

alive() { kill -0 "$(cat "$1/pid")" 2> /dev/null; }

up() {
    local n=$1 i end=$((SECONDS + 120))
    cp "$here/agent.sh" "$here/nodes.sh" "$here/../../xtask/ci/checks.sh" "$SHARE/"
    ln -s "$(echo "$CLUSTER"/kernel/lib/modules/*)" "$SHARE/modules"
    for ((i = 0; i < n; i++)); do
        mkdir "$SHARE/node$i"
        boot $i "$n"
        # The others connect to node 0's sockets.
        until ((i > 0 || n == 1)) || [ -S "$SHARE/wire$((n - 1))" ] || ! alive "$SHARE/node0"; do sleep 0.1; done
    done
    for ((i = 0; i < n; i++)); do
        until [ -e "$SHARE/node$i/ready" ]; do
            if ((SECONDS > end)) || ! alive "$SHARE/node$i"; then
                echo "node$i did not boot; its console and qemu said:"
                tail -n 20 "$SHARE/node$i/console" "$SHARE/node$i/qemu" 2> /dev/null
                return 125
            fi
            sleep 0.2
        done
        echo "node$i: $(cat "$SHARE/node$i/ready")"
    done
}

exec_on() {
    # The node ends what takes too long; a node that does not answer is waited for a
    # little longer.
    local box=$SHARE/node${1#node} job end=$((SECONDS + limit + 10))
    shift
    job=$box/$(date +%s%N)-$$
    echo "$limit" > "$job.limit"
    printf '%s\n' "$*" > "$job.new" && mv "$job.new" "$job.cmd"
    until [ -e "$job.rc" ]; do
        ((SECONDS <= end)) || { cat "$job.out" 2> /dev/null; echo "node${box##*node} does not answer: $*"; return 124; }
        [ -n "${NODE:-}" ] || alive "$box" || { echo "the node died; its console said:"; tail -n 20 "$box/console"; return 125; }
        sleep 0.1
    done
    cat "$job.out"
    return "$(cat "$job.rc")"
}

down() {
    local box
    for box in "$SHARE"/node[0-9]*; do touch "$box/halt"; done
    for box in "$SHARE"/node[0-9]*; do
        [ -s "$box/pid" ] || continue
        for _ in {1..30}; do alive "$box" || break; sleep 0.1; done
        # By its own pid, and only if that is still qemu's with this share.
        if grep -qsF "$SHARE" "/proc/$(cat "$box/pid")/cmdline"; then
            kill -TERM "$(cat "$box/pid")"
            for _ in {1..30}; do alive "$box" || break; sleep 0.1; done
        fi
    done
    rm -rf "$SHARE"
}

command=${1:-}
shift
case $command in
    up) up "$@" ;;
    exec) exec_on "$@" ;;
    down) down ;;
    *) sed -n '2,16p' "$0"; exit 2 ;;
esac
