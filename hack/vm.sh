#!/usr/bin/env bash
# `make test-vm`: tests the node on a machine that systemd booted, with delegated controllers. It is a virtual machine of QEMU, with KVM if
# available, otherwise emulated. Creating its root file system needs root.
#
#   hack/vm.sh [VERDICT…]      without arguments: all verdicts except joined; see docs/virtual-machine.md
#
# This script builds the node, its tests and the program test/vm, which does the rest. The verdicts, their logs and the machine's console
# are saved in _out/vm. For the verdict joined, a node of the test account also runs on this host.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

[ "$(id -u)" = 0 ] || die $exit_preflight "creating the virtual machine needs root" "sudo make test-vm"
ensure_build "$run_needs $e2e_needs debootstrap:debootstrap mkfs.ext4:e2fsprogs qemu-system-x86_64:qemu-system-x86 ssh:openssh-client ps:procps"
CGO_ENABLED=0 go build -trimpath -o "$out/test/vm" ./test/vm
make --no-print-directory build components
e2e_programs
OUT=$out exec "$out/test/vm" "$@"
