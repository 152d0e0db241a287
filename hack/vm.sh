#!/usr/bin/env bash
# `make test-vm`: tests the node on a machine that systemd booted, with delegated controllers.
# It is a virtual machine of QEMU, with KVM if available, otherwise emulated. Creating its root file system needs root. The file
# system is cached in the user's cache directory until its inputs change.
#
#   hack/vm.sh [VERDICT…]      without arguments: all verdicts of test/vm/guest.sh except joined; see docs/virtual-machine.md
#
# test/vm/guest.sh runs in the machine. Its verdicts, its logs and the machine's console are saved in _out/vm. For the verdict joined,
# a node of the test account also runs on this host.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

limit=${ROOTLESSNODE_VM_LIMIT:-90m}
memory=${ROOTLESSNODE_VM_MEMORY:-6144}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rootlessnode/vm
test_account=${ROOTLESSNODE_TEST_ACCOUNT:-rootlessnode-test}
packages=systemd-sysv,udev,dbus,dbus-user-session,libpam-systemd,openssh-server,openssh-client,cron,uidmap,slirp4netns
packages+=,nftables,iptables,iproute2,procps,kmod,util-linux,conntrack,ca-certificates
packages+=,linux-image-cloud-amd64,initramfs-tools,busybox,zstd

# root_image DIR: creates root.ext4 with the Debian release of this host, an account, and a unit that runs the host's script, and copies
# its kernel and initramfs to the same directory.
root_image() {
	local codename mirror root
	codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
	# shellcheck disable=SC2016 # for apt-get, not for the shell
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $codename" 'Label: Debian' | head -n 1)
	[ -n "$mirror" ] || die $exit_preflight "apt has no list of Debian $codename" "apt-get update"
	root=$1/root
	mkdir -p "$root"
	say "making the virtual machine's file system"
	debootstrap --variant=minbase --include="$packages" "$codename" "$root" "$mirror" >"$1/debootstrap.log" 2>&1 ||
		die 1 "debootstrap failed: $(tail -n 1 "$1/debootstrap.log")"
	cp "$root"/boot/vmlinuz-* "$1/vmlinuz"
	cp "$root"/boot/initrd.img-* "$1/initrd"
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
		Description=what the host wants to know
		After=multi-user.target cron.service ssh.service

		[Service]
		Type=oneshot
		# Reboots are part of it, and systemd is told of none that end it.
		TimeoutStartSec=infinity
		ExecStart=/bin/bash -c 'mkdir -p /mnt/share /opt/rootlessnode && mount /dev/vdc /mnt/share && mount -o ro /dev/vdb /opt/rootlessnode && exec bash /mnt/share/guest.sh >>/mnt/share/guest.log 2>&1'

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
		bash /mnt/share/guest.sh >>/mnt/share/guest.log 2>&1
		poweroff --force --force
	INIT
	mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
	ln -sf ../guest.service "$root/etc/systemd/system/multi-user.target.wants/guest.service"
	# These units are not needed, and each takes seconds on an emulated machine.
	local unit
	for unit in apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer dpkg-db-backup.timer; do
		ln -sf /dev/null "$root/etc/systemd/system/$unit"
	done
	rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
	truncate -s 10G "$1/root.ext4"
	mkfs.ext4 -q -O ^has_journal -d "$root" "$1/root.ext4"
	rm -rf "$root"
}

# tree_image FILE: creates an image with the installed build, the end-to-end tests and the image of their pods.
tree_image() {
	make --no-print-directory build components
	e2e_programs
	hack/install.sh "$out" "$stage/tree"
	install -m 0755 "$out/bin/e2e.test" "$out/bin/embed" "$out/test/netprobe" "$stage/tree/bin/"
	install -m 0644 "$out/test/busybox.tar" "$stage/tree/"
	truncate -s 1G "$1"
	mkfs.ext4 -q -d "$stage/tree" "$1"
	[ -z "$joins" ] || cp -r "$stage/tree" "$host/tree"
	rm -rf "$stage/tree"
}

# share_image FILE: creates the image with the input of the machine, to which the machine writes its results.
share_image() {
	mkdir "$stage/share"
	cp test/vm/guest.sh "$stage/share/"
	printf '%s\n' "${wanted[@]}" >"$stage/share/wanted"
	if [ -n "$joins" ]; then
		ssh-keygen -q -t ed25519 -N '' -f "$host/key"
		cp "$host/key.pub" "$stage/share/"
	fi
	truncate -s 256M "$1"
	mkfs.ext4 -q -d "$stage/share" "$1"
	rm -r "$stage/share"
}

# run_machine [INIT]: runs the machine as an unprivileged account without root's terminal. Its second serial line prints the verdicts.
# Emulation is slow with CPU mitigations, with time from a timer device, and with string instructions that repeat per byte, so these are
# disabled. For joined the machine has its own network namespace, which ends with QEMU.
run_machine() {
	local drive=if=virtio,format=raw,cache=unsafe,file=$machine namespace=() net=()
	if [ -n "$joins" ]; then
		# shellcheck disable=SC2016 # for the inner shell
		namespace=(unshare --net sh -ec 'ip tuntap add dev tap0 mode tap user "$0" && exec "$@"' "$test_account")
		net=(-netdev 'tap,id=net0,ifname=tap0,script=no,downscript=no' -device 'virtio-net-pci,netdev=net0,romfile=')
	fi
	exec setsid "${namespace[@]}" timeout --kill-after=10s "$limit" \
		setpriv --reuid="$test_account" --regid="$(id -g "$test_account")" --init-groups env HOME="$machine" TMPDIR="$machine" \
		qemu-system-x86_64 -no-user-config -nodefaults -display none \
		-accel kvm -accel tcg,thread=multi -cpu max,-erms,-fsrm,-smap,-smep,-la57 -smp 2 -m "$memory" -device virtio-rng-pci \
		-kernel "$machine/vmlinuz" -initrd "$machine/initrd" -append 'root=/dev/vda rw console=ttyS0 quiet mitigations=off tsc=reliable clocksource=tsc nowatchdog'"${1:+ init=$1}" \
		-drive "$drive/root.ext4" -drive "$drive/tree.ext4,readonly=on" -drive "$drive/share.ext4" "${net[@]}" \
		-serial "file:$machine/console.log" -serial "file:$machine/progress" </dev/null >>"$results/qemu.log" 2>&1
}

# join_machine PID: runs the test that adds the machine as a worker to a node on this host, in a new process group. All waits of the test
# have time limits.
join_machine() {
	exec setsid env ROOTLESSNODE_E2E_MACHINE="$1" ROOTLESSNODE_E2E_MACHINE_KEY="$host/key" ROOTLESSNODE_E2E_ACCOUNTS="$test_account" \
		ROOTLESSNODE_E2E_OUT="$host/tree" ROOTLESSNODE_E2E_IMAGE="$host/tree/busybox.tar" ROOTLESSNODE_E2E_PATIENCE=5 \
		ROOTLESSNODE_TEST_PROMISES=root,e2e-machine,e2e-build,e2e-account \
		"$host/tree/bin/e2e.test" -test.v -test.timeout=0 -test.run='^TestJoinMachine$' >"$host/joined-host.log" 2>&1 </dev/null
}

# end_join: stops the test if it is still running, and removes its node.
end_join() {
	local program=$host/tree/bin/rootlessnode
	[ -n "$joining" ] || return 0
	kill -- "-$joining" 2>/dev/null || true
	wait "$joining" || true
	joining=
	"$program" host enter --user "$test_account" --command -- "$program" --name e2e-machine-a down --delete-data \
		>>"$host/joined-host.log" 2>&1 || true
}

# wants INIT: succeeds if a requested verdict belongs to the machine that boots with INIT.
wants() {
	local verdict
	[ "${#wanted[@]}" != 0 ] || return 0
	for verdict in "${wanted[@]}"; do
		case $verdict:$1 in
		without_systemd:) ;;
		without_systemd:* | *:) return 0 ;;
		esac
	done
	return 1
}

[ "$(id -u)" = 0 ] || die $exit_preflight "creating the virtual machine needs root" "sudo make test-vm"
wanted=("$@")
# Whether this host runs the test for joined; the pid of that test while it runs; its directory.
joins='' joining='' host=''
case " $* " in *" joined "*) joins=yes ;; esac
ensure_build "$run_needs $e2e_needs debootstrap:debootstrap mkfs.ext4:e2fsprogs qemu-system-x86_64:qemu-system-x86 ${joins:+ssh:openssh-client}"
mkdir -p "$cache"
# Use memory if there is enough space, because etcd waits for the disk after each write.
place=/var/tmp
[ "$(df --output=avail -B1G /dev/shm 2>/dev/null | tail -n 1)" -lt 16 ] || place=/dev/shm
stage=$(mktemp -d "$place/rootlessnode-vm.XXXXXX")
chmod 0755 "$stage"
# The account can write in machine. root collects the results in results.
machine=$stage/machine results=$stage/results
mkdir "$machine" "$results"
: >"$results/consoles.log"
trap 'rm -rf "$stage" "$host"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

key=$({ declare -f root_image; echo "$packages"; } | sha256sum | cut -c1-16)
base=$cache/$key
if [ ! -e "$base/root.ext4" ]; then
	rm -rf "$cache"
	mkdir -p "$cache/new"
	root_image "$cache/new"
	mv "$cache/new" "$base"
fi
id "$test_account" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash "$test_account"
if [ -n "$joins" ]; then
	host=$(mktemp -d "$place/rootlessnode-test.XXXXXX")
	chmod 0755 "$host"
fi
tree_image "$machine/tree.ext4"
[ -z "$joins" ] || "$host/tree/bin/rootlessnode" host setup --user "$test_account" --create-user
share_image "$machine/share.ext4"
cp --sparse=always "$base"/{root.ext4,vmlinuz,initrd} "$machine/"
: >"$machine/progress"
chown -h "$test_account" "$machine"/*
chown "$test_account" "$machine" # last, because the account can change the files from here on

code=0 machines=0
for init in "" /usr/local/sbin/guest-init; do
	wants "$init" || continue
	machines=$((machines + 1))
	say "running the virtual machine for at most $limit${init:+, without systemd}"
	run_machine "$init" &
	qemu=$!
	follow "$test_account" "$machine/progress" "$qemu" "$limit" &
	trap 'kill "$qemu" 2>/dev/null || true; end_join; wait; rm -rf "$stage" "$host"' EXIT
	if [ -n "$joins" ] && [ -z "$init" ]; then
		join_machine "$qemu" &
		joining=$!
		# If the test could not report its end to the machine, the machine would wait for it.
		wait "$joining" || timeout 3m tail --pid="$qemu" -f /dev/null || kill "$qemu" || true
		end_join
	fi
	wait "$qemu" || code=$?
	wait
	trap 'rm -rf "$stage" "$host"' EXIT
	collect_one "$test_account" "$machine/console.log" "$results/console.log"
	[ ! -e "$results/console.log" ] || cat "$results/console.log" >>"$results/consoles.log"
	[ "$code" = 0 ] || break
done
rm -rf "$out/vm"
mkdir -p "$out/vm"
dump_image "$test_account" "$machine/share.ext4" "$out/vm"
cp "$results/consoles.log" "$out/vm/console.log"
cp "$results/qemu.log" "$out/vm/"
[ -z "$joins" ] || cp "$host/joined-host.log" "$out/vm/"
touch "$out/vm/verdicts" "$out/vm/guest.log"
case $code in
0) ;;
124 | 137)
	tail -n 30 "$out/vm/qemu.log" "$out/vm/console.log" "$out/vm/guest.log" | printable
	die 1 "the virtual machine did not stop within $limit; console and logs: $out/vm"
	;;
*) die 1 "the virtual machine exited with code $code; console and logs: $out/vm" ;;
esac
if grep -q '^not ok' "$out/vm/verdicts" || [ "$(grep -cx "done" "$out/vm/verdicts")" != "$machines" ]; then
	[ -z "$joins" ] || tail -n 200 "$out/vm/joined-host.log"
	tail -n 60 "$out/vm/guest.log" | printable
	die 1 "tests failed in the virtual machine; logs: $out/vm"
fi
for verdict in "${wanted[@]}"; do
	grep -q " $verdict " "$out/vm/verdicts" || die 2 "no such verdict: $verdict" "docs/virtual-machine.md lists them"
done
say "all tests passed in the virtual machine"
