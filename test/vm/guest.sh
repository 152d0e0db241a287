# Runs as root in the virtual machine of `make test-vm`, once a boot, and says in /mnt/share/verdicts what was seen: "ok NAME",
# "not ok NAME", and "done" in the end. What the commands print is in files of the same names.
# shellcheck shell=bash
set -u
share=/mnt/share
bin=/opt/rootlessnode/bin
node=$bin/rootlessnode

# verdict NAME CMD...
verdict() {
	local name=$1 began=$SECONDS result=ok
	shift
	"$@" >"$share/$name.log" 2>&1 || result="not ok"
	echo "$result $name ($((SECONDS - began)) s)" >>"$share/verdicts"
	[ "$result" = ok ] || { echo "--- $name"; cat "$share/$name.log"; }
}

# login CMD: runs a command as dev, who logs in anew.
login() { ssh -o StrictHostKeyChecking=no -o BatchMode=yes -o LogLevel=ERROR -i /root/.ssh/id_ed25519 dev@127.0.0.1 "$@"; }

prepare() {
	mkdir -p /root/.ssh
	ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519 &&
		install -D -o dev -g dev -m 0600 /root/.ssh/id_ed25519.pub /home/dev/.ssh/authorized_keys &&
		chown dev:dev /home/dev/.ssh && chmod 0700 /home/dev/.ssh &&
		systemctl is-system-running --wait || systemctl --failed --no-pager
	login true
}

# missing_controllers: check names what the user manager does not hand on, and how root changes that.
missing_controllers() {
	login "$node check" | tee "$share/check"
	grep -q 'warn  cgroup .*lacks cpu' "$share/check" && grep -q 'Delegate=cpu cpuset io memory pids' "$share/check" &&
		grep -q 'cpu got lost at .*user@' "$share/check"
}

# pasted: what check printed for root, pasted, is enough after a new login.
pasted() {
	awk '/^warn  cgroup/ { ours = 1; next } /^[a-z]/ { ours = 0 } ours' "$share/check" >"$share/paste"
	echo "pasting:" && cat "$share/paste"
	bash -e "$share/paste" || return 1
	systemctl stop user@1000.service
	login "$node check" | tee "$share/check-after"
	! grep -q '^fail' "$share/check-after" && ! grep -q 'lacks cpu[, :]' "$share/check-after" &&
		grep -q 'cgroup of the user manager' "$share/check-after"
}

# own_scope: a plain shell's node gets a scope of its own, and leaves nothing.
own_scope() {
	login "$node up --timeout 5m && systemctl --user list-units --type=scope --no-pager && $node status && $node kubectl get nodes -o wide" || return 1
	login "systemctl --user list-units --type=scope --no-pager --plain" | grep rootlessnode-default.scope || return 1
	login "$node down" || return 1
	! login "systemctl --user list-units --type=scope --all --no-pager --plain" | grep rootlessnode- && no_cgroup dev
}

no_cgroup() { ! find "/sys/fs/cgroup/user.slice/user-$(id -u "$1").slice" -name 'rootlessnode*' | grep .; }

# e2e: the end-to-end tests that this machine is for.
e2e() {
	login "ROOTLESSNODE_E2E_OUT=/opt/rootlessnode ROOTLESSNODE_E2E_IMAGE=/opt/rootlessnode/busybox.tar \
		ROOTLESSNODE_TEST_PROMISES=limits,delegated-cgroup,e2e-build,user,subids \
		$bin/e2e.test -test.v -test.timeout=15m -test.parallel=1 -test.run='$1'"
}

# by_su and by_cron: the user manager is there, and nothing in the environment says so.
by_su() { loginctl enable-linger other && su - other -c "unset XDG_RUNTIME_DIR DBUS_SESSION_BUS_ADDRESS; $node up --timeout 5m && $node status && $node down" && no_cgroup other; }

by_cron() {
	rm -f /home/other/cron.done
	echo "* * * * * [ -e cron.log ] || { env >cron.log; { $node up --timeout 5m && $node status && $node down; } >>cron.log 2>&1 && touch cron.done; }" |
		crontab -u other -
	local i
	for i in $(seq 300); do
		[ ! -e /home/other/cron.done ] || break
		sleep 1
	done
	crontab -u other -r
	cat /home/other/cron.log
	[ -e /home/other/cron.done ] && ! grep -q XDG_RUNTIME_DIR= /home/other/cron.log && no_cgroup other
}

# suite: specs of Kubernetes' own suite.
suite() {
	login "$node up --timeout 5m && mkdir -p out && /opt/rootlessnode/suite/conformance run -dir /opt/rootlessnode/suite -out out \
		-rootlessnode $node -kubectl /opt/rootlessnode/libexec/rootlessnode/kubectl -expectations /opt/rootlessnode/suite/expectations.yaml \
		-records /opt/rootlessnode/suite/recorded $1; code=\$?; $node down; exit \$code"
	local code=$?
	cp /home/dev/out/* "$share/" || true
	return $code
}

verdict prepare prepare
loginctl enable-linger dev
verdict missing_controllers missing_controllers
verdict pasted pasted
if [ -s "$share/run" ]; then
	verdict e2e e2e "$(cat "$share/run")"
elif [ -s "$share/suite" ]; then
	verdict suite suite "$(cat "$share/suite")"
else
	verdict own_scope own_scope
	verdict limits e2e 'TestLimits$'
	verdict by_su by_su
	verdict by_cron by_cron
fi
echo done >>"$share/verdicts"
systemctl poweroff --no-block
