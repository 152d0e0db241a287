#!/usr/bin/env bash
# `make test-vm`: how a node gets its cgroup on a machine that systemd booted, with controllers that are really delegated.
# The machine is User-mode Linux, a kernel that runs as an ordinary process (Debian package user-mode-linux), and needs
# neither KVM nor rights. Making its root file system takes root; it is kept in the user's cache directory until what it is
# made from changes.
#
# test/vm/guest.sh runs in the machine. Its verdicts, its logs and the machine's console are left in _out/vm.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

limit=${ROOTLESSNODE_VM_LIMIT:-20m}
memory=${ROOTLESSNODE_VM_MEMORY:-5000M}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rootlessnode/vm
test_account=${ROOTLESSNODE_TEST_ACCOUNT:-rootlessnode-test}
packages=systemd-sysv,udev,dbus,dbus-user-session,libpam-systemd,openssh-server,openssh-client,cron,uidmap,slirp4netns
packages+=,nftables,iptables,iproute2,procps,kmod,util-linux,conntrack,ca-certificates

# root_image FILE: Debian of the release that we are on, with two accounts, and a unit that runs what the host says.
root_image() {
	local codename mirror root
	codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $codename" 'Label: Debian' | head -n 1)
	[ -n "$mirror" ] || die $exit_preflight "apt has no list of Debian $codename" "apt-get update"
	root=$(mktemp -d "$cache/root.XXXXXX")
	trap 'rm -rf "$root"' RETURN
	say "making the virtual machine's file system"
	debootstrap --variant=minbase --include="$packages" "$codename" "$root" "$mirror" >"$cache/debootstrap.log" 2>&1 ||
		die 1 "debootstrap failed: $(tail -n 1 "$cache/debootstrap.log")"
	mkdir -p "$root/usr/lib/modules"
	cp -r /usr/lib/uml/modules/. "$root/usr/lib/modules/"
	echo vm >"$root/etc/hostname"
	local user
	for user in dev other; do chroot "$root" useradd --create-home --shell /bin/bash "$user"; done
	# As systemd before 244 had it, so that there is something to mend.
	install -D -m 0644 /dev/stdin "$root/etc/systemd/system/user@.service.d/a-poor-default.conf" <<-'EOF'
		[Service]
		Delegate=
		Delegate=memory pids
	EOF
	cat >"$root/etc/systemd/system/guest.service" <<-'EOF'
		[Unit]
		Description=what the host wants to know
		After=multi-user.target cron.service ssh.service

		[Service]
		Type=oneshot
		# Reboots are part of it, and systemd is told of none that end it.
		TimeoutStartSec=infinity
		ExecStart=/bin/bash -c 'share=$(sed -n "s/.*guest.share=\\([^ ]*\\).*/\\1/p" /proc/cmdline) && mkdir -p /mnt/share /opt/rootlessnode && mount -t hostfs -o "$share" none /mnt/share && mount -o ro /dev/ubdb /opt/rootlessnode && exec bash /mnt/share/guest.sh >>/mnt/share/guest.log 2>&1'

		[Install]
		WantedBy=multi-user.target
	EOF
	mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
	ln -sf ../guest.service "$root/etc/systemd/system/multi-user.target.wants/guest.service"
	rm -rf "$root"/var/cache/apt/archives/*.deb
	rm -f "$1.new"
	truncate -s 10G "$1.new"
	mkfs.ext4 -q -d "$root" "$1.new"
	mv "$1.new" "$1"
}

# tree_image FILE: the build, as it is installed.
tree_image() {
	make --no-print-directory build components
	hack/install.sh "$out" "$stage/tree"
	truncate -s 1G "$1"
	mkfs.ext4 -q -d "$stage/tree" "$1"
	rm -rf "$stage/tree"
}

[ "$(id -u)" = 0 ] || die $exit_preflight "making the virtual machine takes root" "sudo make test-vm"
ensure_packages "$build_needs $run_needs debootstrap:debootstrap mkfs.ext4:e2fsprogs linux.uml:user-mode-linux"
ensure_go
mkdir -p "$cache"
# In memory, where there is room: an etcd waits for the disk after each write.
place=/var/tmp
[ "$(df --output=avail -B1G /dev/shm 2>/dev/null | tail -n 1)" -lt 16 ] || place=/dev/shm
stage=$(mktemp -d "$place/rootlessnode-vm.XXXXXX")
chmod 0755 "$stage"
trap 'rm -rf "$stage"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

key=$({ declare -f root_image; echo "$packages"; dpkg-query -W user-mode-linux; } | sha256sum | cut -c1-16)
base=$cache/$key.ext4
if [ ! -e "$base" ]; then
	rm -f "$cache"/*.ext4
	root_image "$base"
fi
tree_image "$stage/tree.ext4"
id "$test_account" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash "$test_account"
cp --sparse=always "$base" "$stage/root.ext4"
mkdir "$stage/share" "$stage/uml"
cp test/vm/guest.sh "$stage/share/"
chown -R "$test_account" "$stage"

say "the virtual machine runs, for at most $limit"
code=0
# The kubelet ends where /proc/cpuinfo tells no clock speed. User-mode Linux tells none, but shows the host's name there, which
# may be anything in a UTS namespace.
unshare --uts sh -c 'echo clock:1000.0 >/proc/sys/kernel/hostname && exec "$@"' sh \
	setpriv --reuid="$test_account" --regid="$(id -g "$test_account")" --clear-groups env HOME="$stage" \
	timeout --kill-after=10s "$limit" linux.uml uml_dir="$stage/uml/" umid=guest mem="$memory" \
	ubd0="$stage/root.ext4" ubd1="$stage/tree.ext4" root=/dev/ubda rw guest.share="$stage/share" \
	con=null con0=null,fd:1 con1=null ssl=null </dev/null >"$stage/share/console.log" 2>&1 &
machine=$!
trap 'kill "$machine" 2>/dev/null; wait "$machine"; rm -rf "$stage"' EXIT
wait "$machine" || code=$?
trap 'rm -rf "$stage"' EXIT
rm -rf "$out/vm"
mkdir -p "$out/vm"
cp "$stage"/share/* "$out/vm/"
touch "$out/vm/verdicts"
cat "$out/vm/verdicts"
case $code in
0) ;;
124 | 137)
	tail -n 30 "$out/vm/console.log" "$out/vm/guest.log"
	die 1 "the virtual machine did not end within $limit; its console and logs: $out/vm"
	;;
*) die 1 "the virtual machine ended with $code; its console and logs: $out/vm" ;;
esac
if grep -q '^not ok' "$out/vm/verdicts" || ! grep -qx done "$out/vm/verdicts"; then
	tail -n 60 "$out/vm/guest.log"
	die 1 "not all was as it should be in the virtual machine; logs: $out/vm"
fi
say "all was as it should be in the virtual machine"
