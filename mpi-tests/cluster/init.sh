#!/bin/sh
# PID 1 of a node. Kernel arguments: node=INDEX nodes=COUNT share=PATH (the host's
# folder, at the same path here).
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for word in $($b cat /proc/cmdline); do
    case $word in node=* | nodes=* | share=*) export "${word?}" ;; esac
done
for module in /mod/*.ko; do $b insmod "$module" || echo "init: insmod $module failed"; done

# The host's root, read-only, with a layer of this node's own; and the share.
options="trans=virtio,version=9p2000.L,msize=524288"
$b mount -t 9p -o "$options,ro,cache=loose" root /rom
$b mount -t tmpfs tmp /rw
$b mkdir /rw/up /rw/work
$b mount -t overlay -o lowerdir=/rom,upperdir=/rw/up,workdir=/rw/work root /new
for folder in proc sys dev; do $b mount --move /$folder /new/$folder; done
$b mount -t tmpfs run /new/run
# shellcheck disable=SC2154 # of the kernel's arguments
$b mkdir -p /new/dev/shm /new/dev/pts /new/run/lock "/new$share"
$b mount -t tmpfs shm /new/dev/shm
$b mount -t devpts pts /new/dev/pts
$b mount -t 9p -o "$options,cache=none,access=any" share "/new$share" || $b poweroff -f
exec $b switch_root /new "$share/agent.sh"
