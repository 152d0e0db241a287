# Runs as root in the virtual machine of `make test-vm` and says in /mnt/share/verdicts what was seen: "ok NAME", "not ok NAME",
# and "done" in the end. What the commands print is in files of the same names.
# shellcheck shell=bash
set -u
share=/mnt/share
node=/opt/rootlessnode/bin/rootlessnode

# verdict NAME CMD...
verdict() {
	local name=$1 began=$SECONDS result=ok
	shift
	"$@" >"$share/$name.log" 2>&1 || result="not ok"
	echo "$result $name ($((SECONDS - began)) s)" >>"$share/verdicts"
	[ "$result" = ok ] || { echo "--- $name"; cat "$share/$name.log"; }
}

# login CMD: runs a command as dev, who logs in anew.
login() { ssh -o StrictHostKeyChecking=no -o BatchMode=yes -o LogLevel=ERROR dev@127.0.0.1 "$@"; }

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
	! grep -q '^fail' "$share/check-after" && ! grep -q 'lacks cpu[, :]' "$share/check-after" &&
		grep -q 'cgroup of the user manager' "$share/check-after"
}

# scope_of USER CMD...: up, run by CMD, gets a delegated scope of its own with every controller that there is; its components
# run in cgroups below it; after down there is neither scope nor cgroup, nor anything else.
scope_of() {
	local user=$1 slice scope leaf
	shift
	slice=/sys/fs/cgroup/user.slice/user-$(id -u "$user").slice
	# This machine is too slow to wait for Ready; when the time is over the node goes on.
	"$@" "$node up --timeout 30s"
	[ $? = 5 ] || return 1
	"$@" "$node status"
	scope=$(find "$slice" -name rootlessnode-default.scope)
	[ -n "$scope" ] || return 1
	echo "$scope: $(cat "$scope/cgroup.subtree_control")"
	for leaf in cpu memory pids; do grep -qw "$leaf" "$scope/cgroup.subtree_control" || return 1; done
	for leaf in containerd etcd kube-apiserver; do
		grep -q . "$(find "$scope" -path "*/system/$leaf" -type d)/cgroup.procs" || return 1
	done
	"$@" "$node down" || return 1
	! find "$slice" -name 'rootlessnode*' | grep . && [ ! -e "/run/user/$(id -u "$user")/rootlessnode/default" ] &&
		! pgrep -u "$user" -f containerd
}

# by_su: the user manager is there, and nothing in the environment says so.
by_su() { su - other -c "unset XDG_RUNTIME_DIR DBUS_SESSION_BUS_ADDRESS; $*"; }

# by_cron CMD: the same from a cron job. It ends as CMD does.
by_cron() {
	local i
	rm -f ~other/code
	printf '%s\n' "* * * * * [ -e code ] || { { env; $*; } >cron.log 2>&1; echo \$? >code.new; mv code.new code; }" | crontab -u other -
	for i in $(seq 200); do
		[ ! -e ~other/code ] || break
		sleep 1
	done
	crontab -u other -r
	cat ~other/cron.log
	! grep -q '^XDG_RUNTIME_DIR=' ~other/cron.log || return 100
	return "$(cat ~other/code)"
}

verdict prepare prepare
verdict missing_controllers missing_controllers
verdict pasted pasted
verdict scope_by_ssh scope_of dev login
verdict scope_by_su scope_of other by_su
verdict scope_by_cron scope_of other by_cron
echo done >>"$share/verdicts"
systemctl poweroff --no-block
