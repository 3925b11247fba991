#!/bin/bash
# Runs in a node after the root switch: brings up the network and rxe0, then serves the
# mailbox $SHARE/nodeN: *.cmd (a script) -> *.out, *.rc. A file named "halt" there
# powers the node off, and so does the share's end.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
# shellcheck disable=SC2154 # of the kernel's arguments (init.sh)
export NODE=$node NODES=$nodes SHARE=$share
# bash's own pipes are opened by it.
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
# shellcheck source=xtask/ci/checks.sh
. "$SHARE/checks.sh"
box=$share/node$node
hostname "node$node"
for ((i = 0; i < nodes; i++)); do echo "192.0.2.$((i + 1)) node$i"; done > /etc/hosts
echo "127.0.0.1 localhost" >> /etc/hosts
ulimit -l unlimited
modules=lib/modules/$(uname -r)
[ -e "/$modules" ] || { mkdir -p /lib/modules && ln -s "$share/modules" "/$modules"; }
ip link set lo up
device=$(basename "$(compgen -G '/sys/bus/virtio/drivers/virtio_net/virtio*/net/*' | head -1)")
ip link set "$device" name eth0
ip addr add "192.0.2.$((node + 1))/24" dev eth0
# GID 0 is the link-local address, which is nobody's for seconds while it is looked for twice.
echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad
ip link set eth0 mtu 9000 up
# A second device, whose port is down, on the interface that the module dummy makes.
rdma link add rxe0 type rxe netdev eth0
rdma link add rxe1 type rxe netdev dummy0
ip link set dummy0 down
for _ in {1..50}; do
    rdma link show rxe0/1 2> /dev/null | grep -q ACTIVE && break
    sleep 0.1
done
echo "up $(cut -d' ' -f1 /proc/uptime) s, Linux $(uname -r), $(rdma link | tr -s ' ' | cut -d' ' -f2-4 | tr '\n' ' ')" > "$box/ready.new"
mv "$box/ready.new" "$box/ready"
while [ -d "$box" ] && [ ! -e "$box/halt" ]; do
    for command in "$box"/*.cmd; do
        [ -e "$command" ] || continue
        job=${command%.cmd}
        mv "$command" "$job.run"
        {
            # With all that it has started: the next case finds no leftovers.
            limited "$(cat "$job.limit")" bash "$job.run" > "$job.out" 2>&1 < /dev/null
            echo $? > "$job.rc.new"
            mv "$job.rc.new" "$job.rc"
        } &
    done
    sleep 0.1
done
echo o > /proc/sysrq-trigger
sleep 5
