#!/bin/bash
# Makes the nodes' kernel and initramfs in a folder, if they are not there:
#   build.sh FOLDER
# The nodes run the host's own userland, so there is no disk image. The kernel is
# Debian's, downloaded and not installed. PINYARD_CLUSTER_KERNEL names another package, or
# the addresses of the .deb files that one consists of.
# Exits with 77, and one line that says why, where that cannot be had.
set -eEuo pipefail
# What prints nothing by itself ends it with its line.
trap 'echo "${0##*/}: line $LINENO: status $?: $BASH_COMMAND" >&2' ERR
here=$(dirname "$(readlink -f "$0")")
out=${1:?usage: build.sh FOLDER}
wanted=${PINYARD_CLUSTER_KERNEL:-linux-image-6.12-amd64 linux-image-amd64}
modules="9p 9pnet_virtio overlay virtio_pci virtio_net dummy rdma_rxe ib_uverbs rdma_ucm crc32_generic"

cannot() { echo "$*"; exit 77; }

for tool in qemu-system-x86_64 modprobe depmod xz gzip dpkg ip rdma setpriv; do
    command -v "$tool" > /dev/null || cannot "$tool is not there: xtask/ci/deps.sh cluster installs it"
done
[ -x /bin/busybox ] || cannot "/bin/busybox is not there: xtask/ci/deps.sh cluster installs it"
[ "$(uname -m)" = x86_64 ] || cannot "the nodes run this machine's programs, on an emulated x86-64: this is $(uname -m)"

mkdir -p "$out"
cd "$out"
if [ ! -e vmlinuz ]; then
    rm -rf kernel.new && mkdir kernel.new
    if [[ $wanted == *://* ]]; then
        for address in $wanted; do
            python3 -c 'import sys, urllib.request as u; u.urlretrieve(*sys.argv[1:])' "$address" "kernel.new/${address##*/}" \
                > kernel.new/log 2>&1 || cannot "cannot download $address: $(tail -n 1 kernel.new/log)"
        done
    else
        command -v apt-get > /dev/null || cannot "no apt-get to download a kernel with"
        # shellcheck disable=SC2086 # several names on purpose
        package=$(apt-cache depends $wanted 2> /dev/null | awk '/Depends: linux-image-/ && !found++ { print $NF }')
        [ -n "$package" ] || cannot "apt knows none of the kernels $wanted: apt-get update, or set PINYARD_CLUSTER_KERNEL"
        (cd kernel.new && timeout 300 apt-get download -qq -o APT::Sandbox::User=root "$package" > log 2>&1) ||
            cannot "apt-get cannot download $package: $(tail -n 1 kernel.new/log)"
    fi
    for package in kernel.new/*.deb; do dpkg -x "$package" kernel.new; done
    rm -f kernel.new/*.deb kernel.new/log
    depmod -b kernel.new "$(ls kernel.new/lib/modules)"
    rm -rf kernel && mv kernel.new kernel
    ln -s "kernel/boot/vmlinuz-$(ls kernel/lib/modules)" vmlinuz
fi
version=$(ls kernel/lib/modules)

# The initramfs: busybox, init.sh and the modules in load order. What the kernel has
# built in is no module, and is left out.
if [ ! -e initrd.gz ] || [ "$here/init.sh" -nt initrd.gz ] || [ "$here/build.sh" -nt initrd.gz ]; then
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    mkdir -p "$root"/{bin,proc,sys,dev,mod,rom,rw,new}
    cp /bin/busybox "$root/bin/"
    ln -s busybox "$root/bin/sh"
    install -m 755 "$here/init.sh" "$root/init"
    n=100
    # By their whole paths, which may have spaces, each once.
    while read -r module; do
        case $module in *.xz) xz -dc "$module" ;; *) cat "$module" ;; esac > "$root/mod/$n-$(basename "${module%.xz}")"
        n=$((n + 1))
    done < <(for name in $modules; do modprobe -d kernel -S "$version" --show-depends "$name" 2> /dev/null || true; done |
        sed -n 's/^insmod \(.*\.ko[.a-z]*\).*/\1/p' | awk '!seen[$0]++')
    compgen -G "$root/mod/*rdma_rxe*" > /dev/null || cannot "the kernel $version has no rdma_rxe"
    (cd "$root" && find . | /bin/busybox cpio -o -H newc 2> /dev/null) | gzip -1 > initrd.new
    mv initrd.new initrd.gz
fi
echo "Linux $version"
