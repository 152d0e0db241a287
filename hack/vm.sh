#!/usr/bin/env bash
# `make test-vm`: the node on a machine that systemd booted, with controllers that are really delegated.
# The machine is a virtual one, under QEMU: with KVM where that may be used, else emulated. Making its root file system takes
# root; it is kept in the user's cache directory until what it is made from changes.
#
#   hack/vm.sh [VERDICT…]      without arguments all verdicts of test/vm/guest.sh but joined; see docs/virtual-machine.md
#
# test/vm/guest.sh runs in the machine. Its verdicts, its logs and the machine's console are left in _out/vm. For joined a node runs
# on this host too, of the test account.
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

# root_image DIR: Debian of the release that we are on, with an account and a unit that runs what the host says, as root.ext4;
# its kernel and initramfs beside it.
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
	# As systemd before 244 had it, so that there is something to mend.
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
	# The same for a machine without systemd.
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
	# Nothing here needs them, and each costs an emulated machine seconds.
	local unit
	for unit in apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer dpkg-db-backup.timer; do
		ln -sf /dev/null "$root/etc/systemd/system/$unit"
	done
	rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
	truncate -s 10G "$1/root.ext4"
	mkfs.ext4 -q -O ^has_journal -d "$root" "$1/root.ext4"
	rm -rf "$root"
}

# tree_image FILE: the build, as it is installed, with the end-to-end tests and the image of their pods.
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

# share_image FILE: what the machine is told, and where it leaves its results.
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

# run_machine [INIT]: as an account without rights and without root's terminal. Its second serial line says the verdicts as they come.
# Emulation is slow where the kernel guards itself, asks a timer device for the time, or copies with instructions that repeat byte by
# byte. A machine that is to join has a network namespace of its own, which is gone when QEMU is.
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

# join_machine PID: runs the test that makes the machine a worker of a node on this host, in a process group of its own. Each of its
# waits has a limit.
join_machine() {
	exec setsid env ROOTLESSNODE_E2E_MACHINE="$1" ROOTLESSNODE_E2E_MACHINE_KEY="$host/key" ROOTLESSNODE_E2E_ACCOUNTS="$test_account" \
		ROOTLESSNODE_E2E_OUT="$host/tree" ROOTLESSNODE_E2E_IMAGE="$host/tree/busybox.tar" ROOTLESSNODE_E2E_PATIENCE=5 \
		ROOTLESSNODE_TEST_PROMISES=root,e2e-machine,e2e-build,e2e-account \
		"$host/tree/bin/e2e.test" -test.v -test.timeout=0 -test.run='^TestJoinMachine$' >"$host/joined-host.log" 2>&1 </dev/null
}

# end_join: of a test that did not end by itself nothing is left either.
end_join() {
	local program=$host/tree/bin/rootlessnode
	[ -n "$joining" ] || return 0
	kill -- "-$joining" 2>/dev/null || true
	wait "$joining" || true
	joining=
	"$program" host enter --user "$test_account" --command -- "$program" --name e2e-machine-a down --delete-data \
		>>"$host/joined-host.log" 2>&1 || true
}

# wants INIT: whether a verdict is wanted of the machine that boots with INIT.
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

[ "$(id -u)" = 0 ] || die $exit_preflight "making the virtual machine takes root" "sudo make test-vm"
wanted=("$@")
# Whether this host takes part; the test that does, while it runs; and its directory.
joins='' joining='' host=''
case " $* " in *" joined "*) joins=yes ;; esac
ensure_build "$run_needs $e2e_needs debootstrap:debootstrap mkfs.ext4:e2fsprogs qemu-system-x86_64:qemu-system-x86 ${joins:+ssh:openssh-client}"
mkdir -p "$cache"
# In memory, where there is room: an etcd waits for the disk after each write.
place=/var/tmp
[ "$(df --output=avail -B1G /dev/shm 2>/dev/null | tail -n 1)" -lt 16 ] || place=/dev/shm
stage=$(mktemp -d "$place/rootlessnode-vm.XXXXXX")
chmod 0755 "$stage"
# The account can write in machine, and root collects what comes of it in results.
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
chown "$test_account" "$machine" # last: from here on it is the account's

code=0 machines=0
for init in "" /usr/local/sbin/guest-init; do
	wants "$init" || continue
	machines=$((machines + 1))
	say "the virtual machine runs, for at most $limit${init:+, without systemd}"
	run_machine "$init" &
	qemu=$!
	follow "$test_account" "$machine/progress" "$qemu" "$limit" &
	trap 'kill "$qemu" 2>/dev/null || true; end_join; wait; rm -rf "$stage" "$host"' EXIT
	if [ -n "$joins" ] && [ -z "$init" ]; then
		join_machine "$qemu" &
		joining=$!
		# A machine that was not told that the test ended would wait for it.
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
	die 1 "the virtual machine did not end within $limit; its console and logs: $out/vm"
	;;
*) die 1 "the virtual machine ended with $code; its console and logs: $out/vm" ;;
esac
if grep -q '^not ok' "$out/vm/verdicts" || [ "$(grep -cx "done" "$out/vm/verdicts")" != "$machines" ]; then
	[ -z "$joins" ] || tail -n 200 "$out/vm/joined-host.log"
	tail -n 60 "$out/vm/guest.log" | printable
	die 1 "not all was as it should be in the virtual machine; logs: $out/vm"
fi
for verdict in "${wanted[@]}"; do
	grep -q " $verdict " "$out/vm/verdicts" || die 2 "no such verdict: $verdict" "docs/virtual-machine.md lists them"
done
say "all was as it should be in the virtual machine"
