# Runs as root in the virtual machine of `make test-vm`, and says in /mnt/share/verdicts what was seen: "ok NAME", "not ok
# NAME", and "done" in the end. What the commands print is in files of the same names. /mnt/share/wanted has the verdicts that
# the host wants; it is empty for all.
# shellcheck shell=bash
set -u
share=/mnt/share
tree=/opt/rootlessnode
node=$tree/bin/rootlessnode
rebooted=/var/lib/guest-rebooted
# An emulated processor is some twenty times slower than the host's.
patience=10m

# verdict NAME CMD...
verdict() {
	local name=$1 began=$SECONDS result=ok
	shift
	if grep -q . "$share/wanted" && ! grep -qx "$name" "$share/wanted"; then return; fi
	"$@" >"$share/$name.log" 2>&1 || result="not ok"
	echo "$result $name ($((SECONDS - began)) s)" | tee -a "$share/verdicts" >/dev/ttyS1
	[ "$result" = ok ] || { echo "--- $name"; cat "$share/$name.log"; }
	sync
}

# login CMD: runs a command as dev, who logs in anew.
login() { ssh -o StrictHostKeyChecking=no -o BatchMode=yes -o LogLevel=ERROR dev@127.0.0.1 "$@"; }

# by_su CMD: as other. The user manager is there, and nothing in the environment says so.
by_su() { su - other -c "unset XDG_RUNTIME_DIR DBUS_SESSION_BUS_ADDRESS; $*"; }

# by_cron CMD: the same from a cron job. It ends as CMD does.
by_cron() {
	local code
	rm -f ~other/code
	printf '%s\n' "$*" >~other/job.sh
	echo '* * * * * [ -e code ] || [ -e begun ] || { touch begun; { env; bash job.sh; } >cron.log 2>&1; echo $? >code.new; mv code.new code; }' |
		crontab -u other -
	within 900 "the job of cron" test -e ~other/code || return 100
	crontab -u other -r
	cat ~other/cron.log
	code=$(cat ~other/code)
	rm -f ~other/{code,begun}
	! grep -q '^XDG_RUNTIME_DIR=' ~other/cron.log || return 100
	return "$code"
}

# within SECONDS WHAT CMD...: waits until a command succeeds.
within() {
	local limit=$1 what=$2 until=$((SECONDS + $1))
	shift 2
	until "$@"; do
		[ "$SECONDS" -lt "$until" ] || { echo "$what: not within $limit s"; return 1; }
		sleep 1
	done
}

prepare() {
	mkdir -p ~/.ssh
	ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519 &&
		install -D -o dev -g dev -m 0600 ~/.ssh/id_ed25519.pub ~dev/.ssh/authorized_keys &&
		chown dev:dev ~dev/.ssh && chmod 0700 ~dev/.ssh
	systemctl --failed --no-pager
	loginctl enable-linger dev
	loginctl enable-linger other
	login true
}

# missing_controllers: check names what the user manager does not hand on, and how root changes that.
missing_controllers() {
	login "$node check" | tee "$share/check"
	grep -q 'warn  cgroup .*lacks cpu' "$share/check" && grep -q 'Delegate=cpu cpuset io memory pids' "$share/check" &&
		grep -q 'cpu got lost at .*user' "$share/check"
}

# pasted: what check printed for root, pasted, is enough after a new login.
pasted() {
	awk '/^(warn|fail|hint:)/ { ours = 1; next } /^[a-z0-9]/ { ours = 0 } ours' "$share/check" >"$share/paste"
	echo "pasting:" && cat "$share/paste"
	bash -e "$share/paste" || return 1
	systemctl stop user@"$(id -u dev)".service user@"$(id -u other)".service
	login "$node check" | tee "$share/check-after"
	! grep -q '^fail' "$share/check-after" && ! grep -q 'lacks' "$share/check-after" &&
		grep -q 'cgroup of the user manager' "$share/check-after"
}

pods=$(cat <<'MANIFEST'
apiVersion: v1
kind: Pod
metadata: {name: bounded}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: rootlessnode.test/busybox:1
    command: [/bin/sleep, "3600"]
    resources: {limits: {cpu: 200m, memory: 64Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: rootlessnode.test/busybox:1
    command: [/bin/sh, -c, "head -c 134217728 /dev/zero | tail -n 1; sleep 3600"]
    resources: {limits: {memory: 64Mi}}
MANIFEST
)

# scope_of USER CMD...: up, run by CMD, gets a delegated scope of its own with every controller; its components run in cgroups
# below it; the limits of pods are in the kernel and bite, and the node stays Ready; after down there is neither scope nor
# cgroup, nor anything else.
scope_of() {
	local user=$1 slice scope leaf cgroup
	shift
	slice=/sys/fs/cgroup/user.slice/user-$(id -u "$user").slice
	printf '%s\n' "$pods" >/tmp/pods.yaml
	"$@" "$node check && $node up --timeout $patience && $node images import $tree/busybox.tar && $node kubectl apply -f /tmp/pods.yaml &&
		$node kubectl wait --timeout=$patience --for=condition=Ready pod/bounded &&
		$node kubectl wait --timeout=$patience --for=jsonpath='{.status.phase}'=Failed pod/greedy;
		$node kubectl get pods,nodes -o wide; $node kubectl get pod greedy -o jsonpath='{..reason}{\"\\n\"}'"
	scope=$(find "$slice" -name rootlessnode-default.scope)
	[ -n "$scope" ] || return 1
	echo "$scope: $(cat "$scope/cgroup.subtree_control")"
	for leaf in cpu cpuset io memory pids; do grep -qw "$leaf" "$scope/cgroup.subtree_control" || return 1; done
	for leaf in containerd etcd kube-apiserver; do
		grep -q . "$(find "$scope" -path "*/system/$leaf" -type d)/cgroup.procs" || return 1
	done
	cgroup=$(find "$scope" -name memory.max -path '*kubepods*' -exec grep -lx 67108864 {} + | xargs -rn1 dirname)
	echo "limits:" && for leaf in $cgroup; do grep . "$leaf"/{cpu,memory}.max; done
	grep -qx '20000 100000' "$(for leaf in $cgroup; do echo "$leaf/cpu.max"; done | head -n 1)" || return 1
	su "$user" -c "XDG_RUNTIME_DIR=/run/user/\$(id -u) $node kubectl get pod greedy -o jsonpath='{..reason}'" | grep OOMKilled || return 1
	su "$user" -c "XDG_RUNTIME_DIR=/run/user/\$(id -u) $node status" | tee /dev/stderr | grep -q 'Ready' || return 1
	su "$user" -c "$node down --delete-data" || return 1
	left_nothing "$user"
}

# left_nothing USER: neither scope nor cgroup, directory or process of a node.
left_nothing() {
	! find "/sys/fs/cgroup/user.slice/user-$(id -u "$1").slice" -name 'rootlessnode*' | grep . &&
		[ ! -e "/run/user/$(id -u "$1")/rootlessnode/default" ] && ! pgrep -u "$1" -f 'containerd|rootlessnode'
}

# e2e USER TEST: end-to-end tests with real components, as on the host.
e2e() {
	login "ROOTLESSNODE_E2E_OUT=$tree ROOTLESSNODE_E2E_IMAGE=$tree/busybox.tar ROOTLESSNODE_TEST_PROMISES=user,userns,cgroup2,subids,delegated-cgroup,controllers,e2e-build \
		$tree/bin/e2e.test -test.v -test.run='$1'"
}

# installed: a service that is Ready when install returns, in a cgroup of its own, with a log in the journal.
installed() {
	login "$node install" || return 1
	login "systemctl --user status rootlessnode@default --no-pager" | tee /dev/stderr | grep -q 'Status: "ready"' || return 1
	login "$node images import $tree/busybox.tar && $node kubectl create deployment sleeper --image=rootlessnode.test/busybox:1 -- sleep 3600 &&
		$node kubectl rollout status deployment/sleeper --timeout=$patience" || return 1
	login "journalctl --user -u rootlessnode@default --no-pager | tail -n 20"
}

# as_dev CMD: as dev, who is not logged in.
as_dev() { setpriv --reuid=dev --regid=dev --init-groups env -i HOME="$(echo ~dev)" PATH="$PATH" XDG_RUNTIME_DIR="/run/user/$(id -u dev)" bash -c "$*"; }

# back: after a reboot the node is there by itself, its pods too.
back() {
	within 600 "the service after the reboot" as_dev "systemctl --user is-active --quiet rootlessnode@default" || return 1
	loginctl list-sessions --no-legend
	[ -z "$(loginctl list-sessions --no-legend)" ] && as_dev "$node status" &&
		as_dev "$node kubectl rollout status deployment/sleeper --timeout=$patience" && as_dev "$node kubectl get pods -A -o wide"
}

# stopped: in order, within 20 s, with nothing left.
stopped() {
	local began=$SECONDS
	as_dev "systemctl --user stop rootlessnode@default" || return 1
	began=$((SECONDS - began))
	echo "stopped in $began s"
	as_dev "systemctl --user status rootlessnode@default --no-pager -n 30"
	[ "$began" -le 20 ] && [ "$(as_dev "systemctl --user show -p Result --value rootlessnode@default")" = success ] &&
		! find "/sys/fs/cgroup/user.slice/user-$(id -u dev).slice" -path '*rootlessnode@default*' | grep . &&
		[ ! -e "/run/user/$(id -u dev)/rootlessnode/default" ] && ! pgrep -u dev -f 'containerd|rootlessnode'
}

uninstalled() { as_dev "$node uninstall" && [ ! -e ~dev/.config/systemd/user/rootlessnode@.service ]; }

echo "booted in $(cut -d. -f1 /proc/uptime) s" >/dev/ttyS1
if [ -e "$rebooted" ]; then
	verdict back back
	verdict stopped stopped
	verdict uninstalled uninstalled
else
	verdict prepare prepare
	verdict missing_controllers missing_controllers
	verdict pasted pasted
	verdict scope_by_ssh scope_of dev login
	verdict scope_by_su scope_of other by_su
	verdict scope_by_cron scope_of other by_cron
	verdict limits e2e 'TestLimits$'
	verdict installed installed
	if grep -q ' installed ' "$share/verdicts"; then
		touch "$rebooted"
		sync
		systemctl reboot --no-block
		exit
	fi
fi
echo done >>"$share/verdicts"
sync
systemctl poweroff --no-block
