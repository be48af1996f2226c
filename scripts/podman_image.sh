#!/usr/bin/env bash
# The image that the tests with real containers run in. It holds nothing but names: programs come from this machine's
# /usr, mounted read-only. Idempotent; installs podman and runc (Debian, Ubuntu) where they are missing and we may.
set -euo pipefail
cd "$(dirname "$0")/.."
image=localhost/autotune-test

if ! command -v podman >/dev/null || ! command -v runc >/dev/null; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "podman and runc are missing, and only root may install them: apt-get install podman runc" >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends podman runc containernetworking-plugins iptables >/dev/null
fi

export CONTAINERS_CONF="$PWD/tests/containers/containers.conf" STORAGE_DRIVER=vfs
if ! podman image exists "$image"; then
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    mkdir -p "$root"/{dev,etc,proc,root,sys,tmp,usr}
    chmod 1777 "$root/tmp"
    ln -s usr/bin "$root/bin"
    ln -s usr/lib "$root/lib"
    ln -s usr/lib64 "$root/lib64"
    echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
    tar -C "$root" -c . | podman import --quiet - "$image" >/dev/null
fi
podman run --rm --volume /usr:/usr:ro "$image" true
echo "$image is ready"
