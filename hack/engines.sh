#!/usr/bin/env bash
# engines.sh DIR: prepares what the test of container engines needs, as root of a Debian machine: DIR/docker with the files of Debian's packages
# of Docker, which are not installed, so that no service is started; and DIR/debian.tar, a root file system of Debian with the packages of the
# Containerfile in docs/containers.md, because the test has no network. Existing files are kept.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

dir=$1
ensure_packages 'podman:podman crun:crun debootstrap:debootstrap'
mkdir -p "$dir"
temporary=$(mktemp -d "$dir/new.XXXXXX")
trap 'rm -rf "$temporary"' EXIT

if [ ! -d "$dir/docker" ]; then
	say "Docker of Debian"
	(cd "$temporary" && apt-get download -qq docker.io containerd runc)
	for package in "$temporary"/*.deb; do
		dpkg -x "$package" "$temporary/docker"
	done
	mv "$temporary/docker" "$dir/docker"
fi
if [ ! -f "$dir/debian.tar" ]; then
	packages=$(sed -n 's/.*--no-install-recommends \(.*\) \\$/\1/p' docs/containers.md)
	say "a root file system of Debian with $packages"
	debootstrap --variant=minbase --include="${packages// /,}" bookworm "$temporary/root" http://deb.debian.org/debian >"$temporary/log" 2>&1 ||
		{ tail -n 20 "$temporary/log" && die 1 "debootstrap failed"; }
	tar -C "$temporary/root" -cf "$temporary/debian.tar" .
	mv "$temporary/debian.tar" "$dir/debian.tar"
fi
