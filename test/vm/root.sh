# Creates root.ext4 in the working directory, with the Debian release of this host, an account, and a unit that runs the host's program, and
# copies its kernel and initramfs to the same directory. test/vm runs it with bash, as root.
# shellcheck shell=bash
set -euo pipefail
packages=systemd-sysv,udev,dbus,dbus-user-session,libpam-systemd,openssh-server,openssh-client,cron,uidmap,slirp4netns
packages+=,nftables,iptables,iproute2,procps,kmod,util-linux,conntrack,ca-certificates
packages+=,linux-image-cloud-amd64,initramfs-tools,busybox,zstd
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
# shellcheck disable=SC2016 # for apt-get, not for the shell
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $codename" 'Label: Debian' | head -n 1)
[ -n "$mirror" ] || { echo "apt has no list of Debian $codename; run apt-get update" >&2; exit 1; }
root=$PWD/root
mkdir "$root"
debootstrap --variant=minbase --include="$packages" "$codename" "$root" "$mirror" >debootstrap.log 2>&1 ||
	{ tail -n 3 debootstrap.log >&2; exit 1; }
cp "$root"/boot/vmlinuz-* vmlinuz
cp "$root"/boot/initrd.img-* initrd
echo vm >"$root/etc/hostname"
echo '/dev/vda / ext4 defaults 0 1' >"$root/etc/fstab"
chroot "$root" useradd --create-home --shell /bin/bash dev
# The default of systemd before 244, so that there is something to fix.
install -D -m 0644 /dev/stdin "$root/etc/systemd/system/user@.service.d/a-poor-default.conf" <<-'UNIT'
	[Service]
	Delegate=
	Delegate=memory pids
UNIT
cat >"$root/etc/systemd/system/guest.service" <<-'UNIT'
	[Unit]
	Description=tests of the node
	After=multi-user.target cron.service ssh.service

	[Service]
	Type=oneshot
	# The service ends with a power-off or a reboot.
	TimeoutStartSec=infinity
	ExecStart=/bin/bash -c 'mkdir -p /mnt/share /opt/rootlessnode && mount /dev/vdc /mnt/share && mount -o ro /dev/vdb /opt/rootlessnode && { /mnt/share/vm guest >>/mnt/share/guest.log 2>&1 || poweroff --force; }'

	[Install]
	WantedBy=multi-user.target
UNIT
# The equivalent for a machine without systemd.
install -m 0755 /dev/stdin "$root/usr/local/sbin/guest-init" <<-'INIT'
	#!/bin/bash
	export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
	mount -t cgroup2 cgroup2 /sys/fs/cgroup
	mkdir -p /dev/pts /dev/shm && mount -t devpts devpts /dev/pts && mount -t tmpfs tmpfs /dev/shm
	ip link set lo up
	hostname vm
	mkdir -p /mnt/share /opt/rootlessnode && mount /dev/vdc /mnt/share && mount -o ro /dev/vdb /opt/rootlessnode
	/mnt/share/vm guest >>/mnt/share/guest.log 2>&1
	poweroff --force --force
INIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -sf ../guest.service "$root/etc/systemd/system/multi-user.target.wants/guest.service"
# These units are not needed, and each takes seconds on an emulated machine.
for unit in apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer dpkg-db-backup.timer; do
	ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
truncate -s 10G root.ext4
mkfs.ext4 -q -O ^has_journal -d "$root" root.ext4
rm -rf "$root"
