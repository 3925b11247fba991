#!/usr/bin/env bash
# Does the README hold for a newcomer? A bare Debian 12 in a folder of its own, with what the
# README asks for and nothing else, a clean clone of the last commit, and the README's
# commands as they stand there: `make demo` (under five minutes on two cores, and a step of
# `make test-all`), with `--test` also `make test`. Needs root, debootstrap and a network; without
# them it is skipped, with the reason.
#
#   xtask/ci/newcomer.sh [--test]
#
# The machine's ways to the network (resolver, proxies, certificates, cargo's registries) are
# handed in, and its Rust, read-only; the folder and all processes in it are gone afterwards.
set -euo pipefail
cd "$(dirname "$0")/../.."

. xtask/ci/checks.sh
without() { skip "newcomer: $*" && counts && exit; }

case ${1:-} in
    '' | --test | --inside) ;;
    *) echo "usage: xtask/ci/newcomer.sh [--test]" >&2; exit 2 ;;
esac

if [ "${1:-}" != --inside ]; then
    [ -z "${NEWCOMER:-}" ] || without "this is the bare Debian of a newcomer already"
    [ "$(git -c safe.directory='*' rev-parse --show-prefix 2> /dev/null || echo none)" = "" ] || without "no clone to be cloned: the sources lie in no repository of git's"
    [ "$(id -u)" -eq 0 ] || without "mounts and chroot need root"
    command -v debootstrap > /dev/null || without "no debootstrap: xtask/ci/deps.sh newcomer"
    command -v rustc > /dev/null || without "no Rust to hand in"
    unshare --mount --pid --fork true 2> /dev/null || without "no mount and process namespaces (unshare(2) is refused)"
    # Users of packages (munge, _apt) look into it.
    root=$(mktemp -d) && chmod 755 "$root"
    trap 'rm -rf --one-file-system "$root"' EXIT
    # shellcheck disable=SC2016 # apt's own placeholder
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' 'Component: main' 2> /dev/null | head -n 1)
    [ -n "$mirror" ] || without "apt's sources name no mirror of Debian 12"
    # debootstrap takes several minutes to give up by itself.
    timeout 60 /usr/lib/apt/apt-helper download-file "${mirror%/}/dists/bookworm/Release" "$root/Release" > /dev/null 2>&1 ||
        without "no network: $mirror does not answer"
    rm "$root/Release"
    # Mounts and processes go with these namespaces.
    unshare --mount --propagation private --pid --fork --kill-child "$0" --inside "$root" "${mirror%/}" "${1:-}"
    exit
fi

root=$2 mirror=$3 also=$4
log=$root.log
said=$root.said
trap 'rm -f "$log" "$said" "$said.late"' EXIT
began=$SECONDS
# What the README asks for: git, make, and a way to believe servers.
debootstrap --variant=minbase --include=ca-certificates,git,make bookworm "$root" "$mirror" > "$log" 2>&1 ||
    { tail -n 20 "$log"; echo "newcomer: debootstrap failed"; exit 1; }
echo "a bare Debian $(cat "$root/etc/debian_version"): $(find "$root/var/lib/dpkg/info" -name '*.list' | wc -l) packages, $((SECONDS - began)) s"

mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind -o ro /sys "$root/sys"
mkdir -p "$root/opt/rust" "$root/root/.cargo"
mount --bind -o ro "$(rustc --print sysroot)" "$root/opt/rust"

# As in any chroot and container: no package starts a service, for which there is no init.
printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"

# As Debian's installer writes it.
printf '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n' > "$root/etc/hosts"

# The machine's ways to the network.
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
apt-config dump | grep -E '^Acquire::.*(Proxy|Check-)' > "$root/etc/apt/apt.conf.d/99machine" || true
[ ! -e "${CARGO_HOME:-$HOME/.cargo}/config.toml" ] || cp "${CARGO_HOME:-$HOME/.cargo}/config.toml" "$root/root/.cargo/"
environment=(NEWCOMER=yes HOME=/root TERM=dumb LANG=C.UTF-8 PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [ -z "${!name:-}" ] || environment+=("$name=${!name}")
done
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/machine.crt"
    for name in SSL_CERT_FILE CARGO_HTTP_CAINFO CURL_CA_BUNDLE PIP_CERT; do environment+=("$name=/etc/machine.crt"); done
fi

git -c safe.directory='*' -c advice.detachedHead=false -c init.defaultBranch=main clone --quiet --no-hardlinks "file://$PWD" "$root/root/pinyard"

# The README's two commands, as they stand there.
mapfile -t commands < <(xtask/ci/block.sh README.md commands | sed 's/ *#.*//')
[ "${commands[*]}" = "make demo make test" ] || { echo "newcomer: the README has other commands: ${commands[*]}"; exit 1; }
[ "$also" = --test ] || commands=("${commands[0]}")
inside() { env -i "${environment[@]}" chroot "$root" bash -c 'cd ~/pinyard && exec $0' "$1"; }
for command in "${commands[@]}"; do check "$command, from nothing" inside "$command"; done
unchanged() {
    git -c safe.directory='*' -C "$root/root/pinyard" status --porcelain > "$log"
    cat "$log"
    [ ! -s "$log" ]
}
check "the clone has no change that git would see" unchanged
counts
