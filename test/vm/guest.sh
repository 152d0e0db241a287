# Runs as root in the virtual machine of `make test-vm`, and writes verdicts to /mnt/share/verdicts: "ok NAME", "not ok NAME", and
# "done" at the end. The output of each verdict is in NAME.log. /mnt/share/wanted lists the requested verdicts. It is empty for all.
# shellcheck shell=bash
set -u
share=/mnt/share
tree=/opt/rootlessnode
node=$tree/bin/rootlessnode
rebooted=/var/lib/guest-rebooted
# An emulated processor is about twenty times slower than that of the host.
patience=15m

# verdict NAME CMD...: runs a command if the verdict is requested, and writes its verdict.
verdict() {
	local name=$1 began=$SECONDS result=ok
	shift
	if grep -q . "$share/wanted" && ! grep -qx "$name" "$share/wanted"; then return; fi
	"$@" >>"$share/$name.log" 2>&1 || result="not ok"
	echo "$result $name ($((SECONDS - began)) s)" | tee -a "$share/verdicts" >/dev/ttyS1
	[ "$result" = ok ] || { echo "--- $name"; cat "$share/$name.log"; }
	sync
}

# login CMD: runs a command as dev in a new login session.
login() { ssh -o StrictHostKeyChecking=no -o BatchMode=yes -o LogLevel=ERROR dev@127.0.0.1 "$@"; }

# by_su CMD: runs a command as dev with a user manager, but without the environment variables for it.
by_su() { su - dev -c "unset XDG_RUNTIME_DIR DBUS_SESSION_BUS_ADDRESS; $*"; }

# by_cron CMD: the same in a cron job. It returns the exit code of CMD.
by_cron() {
	local code
	rm -f ~dev/code
	printf '%s\n' "$*" >~dev/job.sh
	echo '* * * * * [ -e code ] || [ -e begun ] || { touch begun; { env; bash job.sh; } >cron.log 2>&1; echo $? >code.new; mv code.new code; }' |
		crontab -u dev -
	within 900 "the job of cron" test -e ~dev/code || return 100
	crontab -u dev -r
	cat ~dev/cron.log
	code=$(cat ~dev/code)
	rm -f ~dev/{code,begun}
	! grep -q '^XDG_RUNTIME_DIR=' ~dev/cron.log || return 100
	return "$code"
}

# within SECONDS WHAT CMD...: waits until a command succeeds.
within() {
	local limit=$1 what=$2 until=$((SECONDS + $1))
	shift 2
	until "$@"; do
		[ "$SECONDS" -lt "$until" ] || { echo "$what: not done within $limit s"; return 1; }
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
	login true
}

# missing_controllers: check reports the controllers that the user manager does not delegate, and how root changes that.
missing_controllers() {
	login "$node check" | tee "$share/check"
	grep -q 'warn  cgroup .*lacks cpu' "$share/check" && grep -q 'Delegate=cpu cpuset io memory pids' "$share/check" &&
		grep -q 'cpu is not delegated to .*user' "$share/check"
}

# pasted: pasting the hints of check for root is sufficient after a new login.
pasted() {
	awk '/^(warn|fail|hint:)/ { ours = 1; next } /^[a-z0-9]/ { ours = 0 } ours' "$share/check" >"$share/paste"
	echo "pasting:" && cat "$share/paste"
	bash -e "$share/paste" || return 1
	systemctl stop user@"$(id -u dev)".service
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

# as USER CMD: runs a command as a user without a login session.
as() {
	local user=$1
	shift
	setpriv --reuid="$user" --regid="$user" --init-groups env -i HOME="$(eval "echo ~$user")" PATH="$PATH" \
		XDG_RUNTIME_DIR="/run/user/$(id -u "$user")" bash -c "$*"
}

# bounded USER DIR CMD...: up, run by CMD, gets its own cgroup below DIR with every controller, and its components run there. The
# kernel enforces the limits of pods, and the node stays Ready. Nothing is left after down.
bounded() {
	local user=$1 dir=$2 own leaf cgroup
	shift 2
	find "$dir" -type d 2>/dev/null | sort >/tmp/cgroups
	printf '%s\n' "$pods" >/tmp/pods.yaml
	"$@" "$node check && $node up --timeout $patience && $node kubectl delete --ignore-not-found -f /tmp/pods.yaml &&
		$node images import $tree/busybox.tar && $node kubectl apply -f /tmp/pods.yaml &&
		$node kubectl wait --timeout=$patience --for=condition=Ready pod/bounded &&
		$node kubectl wait --timeout=$patience --for=jsonpath='{.status.phase}'=Failed pod/greedy;
		$node kubectl get pods,nodes -o wide"
	own=$(find "$dir" -type d -path '*/system/etcd' | head -n 1)
	own=${own%/system/etcd}
	[ -n "$own" ] || return 1
	echo "$own: $(cat "$own/cgroup.subtree_control")"
	for leaf in cpu cpuset io memory pids; do grep -qw "$leaf" "$own/cgroup.subtree_control" || return 1; done
	for leaf in containerd etcd kube-apiserver kubelet; do
		grep -q . "$own/system/$leaf/cgroup.procs" || return 1
	done
	# shellcheck disable=SC2038 # the kubelet's names have no spaces
	cgroup=$(find "$own" -name memory.max -path '*kubepods*' -exec grep -lx 67108864 {} + | xargs -rn1 dirname)
	echo "limits:" && for leaf in $cgroup; do grep . "$leaf"/{cpu,memory}.max; done
	for leaf in $cgroup; do cat "$leaf/cpu.max"; done | grep -qx '20000 100000' || return 1
	as "$user" "$node kubectl get pod greedy -o jsonpath='{..reason}'" | tee -a /dev/stderr | grep -q OOMKilled || return 1
	as "$user" "$node status" | tee -a /dev/stderr | grep -q Ready || return 1
	as "$user" "$node kubectl get nodes --no-headers" | tee -a /dev/stderr | grep -qw Ready || return 1
	as "$user" "$node down" || return 1
	! find "$dir" -path '*rootlessnode*' -type d | sort | comm -13 /tmp/cgroups - | grep . &&
		[ ! -e "/run/user/$(id -u "$user")/rootlessnode/default" ] && ! pgrep -u "$user" -f 'containerd|rootlessnode'
}

# scope_of CMD...: the same for dev, and the cgroup is a scope of the user manager.
scope_of() {
	as dev "$node down" # the node of an earlier verdict that failed
	bounded dev "/sys/fs/cgroup/user.slice/user-$(id -u dev).slice" "$@" | tee /tmp/bounded
	[ "${PIPESTATUS[0]}" = 0 ] && grep -q '/rootlessnode-default.scope' /tmp/bounded
}

# by_enter CMD: runs a command as plain, an account that `host setup` prepared, on a machine without systemd.
by_enter() { "$node" host enter --user plain --command -- bash -c "$*"; }

without_systemd() {
	"$node" host setup --user plain --create-user --dry-run || return 1
	"$node" host setup --user plain --create-user && bounded plain /sys/fs/cgroup/rootlessnode by_enter &&
		"$node" host undo --user plain
}

# e2e TEST: runs end-to-end tests with real components as dev.
e2e() {
	login "ROOTLESSNODE_E2E_PATIENCE=5 ROOTLESSNODE_E2E_OUT=$tree ROOTLESSNODE_E2E_IMAGE=$tree/busybox.tar ROOTLESSNODE_TEST_PROMISES=user,userns,cgroup2,subids,delegated-cgroup,limits,cpuset,nft-queue,e2e-build \
		$tree/bin/e2e.test -test.v -test.parallel=1 -test.run='$1'"
}

# joined: this machine is a worker of a cluster whose control plane is a node on the host. TestJoinMachine on the host does all steps
# over ssh, and writes its result to dev's home. The address of the machine is fixed.
joined() {
	local device
	for device in /sys/class/net/*/device; do device=$(basename "$(dirname "$device")"); done
	ip address add 10.99.0.2/24 dev "$device" && ip link set "$device" up && ip -brief address || return 1
	cat "$share/key.pub" >>~dev/.ssh/authorized_keys || return 1 # prepare makes the directory
	within 4500 "the result of the host, whose log is joined-host.log," test -s ~dev/joined || return 1
	journalctl --no-pager -q -o short-monotonic -t sshd | tail -n 20
	grep -qx passed ~dev/joined
}

# policies: the modules are loaded automatically, and a client has an address that is not a loopback address of the host.
policies() {
	local code
	grep -E '^(nft_queue|nfnetlink_queue|br_netfilter) ' /proc/modules
	ip address add 192.0.2.10/32 dev lo
	e2e 'TestNetworkPolicy$'
	code=$?
	grep -E '^(nft_queue|nfnetlink_queue|br_netfilter) ' /proc/modules
	ip address del 192.0.2.10/32 dev lo
	return $code
}

# installed: the service is Ready when install returns, in its own cgroup, with a log in the journal.
installed() {
	login "$node install" || return 1
	login "systemctl --user status rootlessnode@default --no-pager" | tee -a /dev/stderr | grep -q 'Status: "ready"' || return 1
	login "$node images import $tree/busybox.tar && $node kubectl create deployment sleeper --image=rootlessnode.test/busybox:1 -- /bin/sh -c 'trap exit TERM; sleep 3600 & wait' &&
		$node kubectl rollout status deployment/sleeper --timeout=$patience" || return 1
	login "journalctl --user -u rootlessnode@default --no-pager | tail -n 20"
	login "journalctl --user -u rootlessnode@default --no-pager -o cat COMPONENT=kubelet" | tee -a /dev/stderr | grep -q .
}

# killed: systemd restarts the node after its parent was killed, even if processes of it are left.
killed() {
	local main
	main=$(as dev "systemctl --user show -P MainPID rootlessnode@default")
	kill -KILL "$main" || return 1
	ready_again() {
		local now
		now=$(as dev "systemctl --user show -P MainPID rootlessnode@default")
		[ "$now" != 0 ] && [ "$now" != "$main" ] && as dev "systemctl --user is-active --quiet rootlessnode@default"
	}
	within 600 "the service after its parent was killed" ready_again || return 1
	as dev "$node status" && as dev "$node kubectl rollout status deployment/sleeper --timeout=$patience"
}

# on_demand: systemd listens on the port of the API server, and the node starts when a client connects.
on_demand() {
	as dev "$node install --on-demand && systemctl --user stop rootlessnode@default" || return 1
	! as dev "systemctl --user is-active rootlessnode@default" || return 1
	within 600 "a response of the node that was started on demand" as dev "$node kubectl get nodes" || return 1
	as dev "systemctl --user status rootlessnode@default.socket rootlessnode@default.service --no-pager"
	as dev "$node install && ! systemctl --user is-active rootlessnode@default.socket"
}

# busy: prints the seconds of processor time that the host's PID 1 and dev's user manager have used.
busy() {
	local manager
	manager=$(systemctl show -P MainPID "user@$(id -u dev).service")
	awk -v tick="$(getconf CLK_TCK)" '{ t += $14 + $15 } END { printf "%.2f\n", t / tick }' /proc/1/stat "/proc/$manager/stat"
}

# spent BEFORE WHAT: prints the processor time that they used since BEFORE.
spent() { awk -v a="$1" -v b="$(busy)" -v what="$2" 'BEGIN { printf "%s: %.2f s of processor time of PID 1 and the user manager\n", what, b - a }'; }

crowd='{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"crowd"},"spec":{"replicas":0,"selector":{"matchLabels":{"app":"crowd"}},
"template":{"metadata":{"labels":{"app":"crowd"}},"spec":{"terminationGracePeriodSeconds":0,"containers":[{"name":"main",
"image":"rootlessnode.test/busybox:1","command":["sleep","3600"]}]}}}}'

# paced N CMD: runs CMD with each number up to N, spread over two minutes.
paced() {
	local i n=$1
	shift
	for i in $(seq "$n"); do
		"$@" "$i" || return 1
		sleep "$(awk -v n="$n" 'BEGIN { print 120 / n }')"
	done
}
visible_mount() { mkdir -p "/tmp/visible/$1" && mount -t tmpfs tmpfs "/tmp/visible/$1"; }
visible_umount() { umount "/tmp/visible/$1"; }

# mounts_cost: measures the processor time of PID 1 and the user manager while thirty pods with their mounts are created and deleted, while
# the same number of mounts is made in the host's namespace, and while nothing happens.
mounts_cost() {
	local before inside host n began
	inside=$(as dev "$node exec -- cat /proc/self/mountinfo" | wc -l)
	host=$(wc -l </proc/1/mountinfo)
	echo "$crowd" >/tmp/crowd.json
	before=$(busy) began=$SECONDS
	# An emulated machine cannot start thirty at the same time.
	as dev "$node kubectl apply -f /tmp/crowd.json &&
		for n in 5 10 15 20 25 30; do
			$node kubectl scale deployment/crowd --replicas=\$n && $node kubectl rollout status deployment/crowd --timeout=$patience || exit 1
		done" || return 1
	n=$(($(as dev "$node exec -- cat /proc/self/mountinfo" | wc -l) - inside))
	[ "$(wc -l </proc/1/mountinfo)" = "$host" ] || { diff <(as dev "$node exec -- cat /proc/self/mountinfo") /proc/1/mountinfo; return 1; }
	as dev "$node kubectl scale deployment/crowd --replicas=0 &&
		$node kubectl wait pod --selector=app=crowd --for=delete --timeout=$patience && $node kubectl delete deployment crowd" || return 1
	echo "30 pods were created and deleted, with $n mounts, none of them in the host's namespace"
	spent "$before" "hidden, $n mounts in $((SECONDS - began)) s"
	before=$(busy)
	sleep 120
	spent "$before" "idle for 120 s"
	before=$(busy)
	paced "$n" visible_mount && paced "$n" visible_umount || return 1
	spent "$before" "visible, $n mounts in 240 s"
	[ "$n" -ge 90 ]
}

# back: the node and its pods start automatically after a reboot.
back() {
	local settled="systemctl --user show -P ActiveState rootlessnode@default | grep -x 'active\|failed'"
	within 600 "the service after the reboot" as dev "$settled"
	as dev "$settled | grep -x active" || { as dev "systemctl --user status rootlessnode@default --no-pager -n 60"; return 1; }
	loginctl list-sessions --no-legend
	[ -z "$(loginctl list-sessions --no-legend)" ] && as dev "$node status" &&
		as dev "$node kubectl wait --for=condition=Ready pod -l app=sleeper --timeout=$patience" && as dev "$node kubectl get pods -A -o wide"
}

# stopped: the node stops cleanly within 20 s, with nothing left.
stopped() {
	local began=$SECONDS
	as dev "systemctl --user stop rootlessnode@default" || return 1
	began=$((SECONDS - began))
	echo "stopped in $began s"
	as dev "systemctl --user status rootlessnode@default --no-pager -n 30"
	ls "/run/user/$(id -u dev)/rootlessnode" && echo "these files are left in the runtime directory"
	[ "$began" -le 20 ] && [ "$(as dev "systemctl --user show -p Result --value rootlessnode@default")" = success ] &&
		! find "/sys/fs/cgroup/user.slice/user-$(id -u dev).slice" -path '*rootlessnode@default*' | grep . &&
		[ ! -e "/run/user/$(id -u dev)/rootlessnode/default" ] && ! pgrep -u dev -f 'containerd|rootlessnode'
}

uninstalled() { as dev "$node uninstall" && [ ! -e ~dev/.config/systemd/user/rootlessnode@.service ]; }

top -b -d 15 -w 160 >"$share/top.log" &
# a_rootful_node [FLAG]...: creates units for containerd and a kubelet like those of a distribution. The kubelet has no API server unless a
# flag sets one.
a_rootful_node() {
	local lib=$tree/libexec/rootlessnode
	mkdir -p /etc/rootful/pods
	cat >/etc/rootful/containerd.toml <<-TOML
		version = 3
		[plugins.'io.containerd.cri.v1.images']
		  snapshotter = 'overlayfs'
		[plugins.'io.containerd.cri.v1.images'.pinned_images]
		  sandbox = 'registry.k8s.io/pause:3.10.2'
	TOML
	cat >/etc/rootful/kubelet.yaml <<-YAML
		apiVersion: kubelet.config.k8s.io/v1beta1
		kind: KubeletConfiguration
		authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
		authorization: {mode: AlwaysAllow}
		containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
		staticPodPath: /etc/rootful/pods
		cgroupDriver: cgroupfs
		failSwapOn: false
	YAML
	cat >/etc/systemd/system/containerd.service <<-UNIT
		[Service]
		Type=notify
		Environment=PATH=$lib:/usr/sbin:/usr/bin:/sbin:/bin
		ExecStart=$lib/containerd --config /etc/rootful/containerd.toml
		Delegate=yes
		KillMode=process
	UNIT
	cat >/etc/systemd/system/kubelet.service <<-UNIT
		[Unit]
		Requires=containerd.service
		After=containerd.service

		[Service]
		Environment="ARGS=--config=/etc/rootful/kubelet.yaml $*"
		ExecStart=$lib/kubelet \$ARGS
		KillMode=process
	UNIT
	systemctl daemon-reload
}

# three_pods: creates static pods that mount one directory, one for each mount propagation.
three_pods() {
	local mode
	mkdir -p /var/lib/prop
	for mode in None HostToContainer Bidirectional; do
		cat >"/etc/rootful/pods/$mode.yaml" <<-YAML
			apiVersion: v1
			kind: Pod
			metadata: {name: p-${mode,,}}
			spec:
			  hostNetwork: true
			  terminationGracePeriodSeconds: 0
			  containers:
			  - name: main
			    image: rootlessnode.test/busybox:1
			    command: [/bin/busybox, sh, -c, "[ $mode != Bidirectional ] || busybox mount -t tmpfs by-pod /prop/by-pod || exit 1; exec sleep $(nap "$mode")"]
			    securityContext: {privileged: true}
			    volumeMounts: [{name: prop, mountPath: /prop, mountPropagation: $mode}]
			  volumes: [{name: prop, hostPath: {path: /var/lib/prop}}]
		YAML
	done
}

# import_images: imports images, because the rootful containerd has no registry.
import_images() {
	"$tree/libexec/rootlessnode/ctr" -n k8s.io images import "$tree/busybox.tar" &&
		find "$tree/share/rootlessnode/images" -name '*pause*' -exec "$tree/libexec/rootlessnode/ctr" -n k8s.io images import {} \;
}

# nap MODE: prints how long the pod of a mode sleeps, which identifies its process. pod_of MODE prints its pid.
nap() {
	case $1 in None) echo 36001 ;; HostToContainer) echo 36002 ;; *) echo 36003 ;; esac
}
pod_of() { pgrep -xf "sleep $(nap "$1")"; }

# sees PID SUFFIX: succeeds if the mount namespace of a process has a mount point with this suffix.
sees() { [ -n "$1" ] && awk '{ print $5 }' "/proc/$1/mountinfo" | grep -q "$2\$"; }

# matrix VISIBLE: checks which processes see the mount of the host and that of a pod, with a hidden or a visible namespace.
matrix() {
	local visible=$1 who pid want ok=0 seen
	mkdir -p /var/lib/prop/by-pod /var/lib/prop/by-host
	systemctl start containerd kubelet || return 1
	import_images || return 1
	for who in None HostToContainer Bidirectional; do
		within 300 "the pod $who" pod_of "$who" && continue
		journalctl --no-pager -n 60 -u kubelet -u containerd
		return 1
	done
	within 60 "the pod's mount" sees "$(pod_of Bidirectional)" /by-pod || return 1
	mount -t tmpfs by-host /var/lib/prop/by-host || return 1
	for who in host kubelet containerd None HostToContainer Bidirectional; do
		case $who in
		host) pid=1 want="by-host$([ "$visible" = no ] || echo ' by-pod')" ;;
		kubelet | containerd) pid=$(systemctl show -P MainPID "$who") want="by-host by-pod" ;;
		None) pid=$(pod_of "$who") want="" ;;
		*) pid=$(pod_of "$who") want="by-host by-pod" ;;
		esac
		seen=$(for m in by-host by-pod; do ! sees "$pid" "/$m" || echo "$m"; done | xargs)
		echo "$who sees: ${seen:-nothing}"
		[ "$seen" = "$want" ] || { echo "  expected: ${want:-nothing}"; ok=1; }
	done
	"$node" mountns status || ok=1
	return $ok
}

# no_rootful_node: stops the pods and daemons, and deletes the namespace.
no_rootful_node() {
	systemctl stop kubelet
	pkill -u root -f 'sleep 3600.' || true # dev has pods too
	systemctl stop containerd
	pkill -u root -f "$tree/libexec/rootlessnode/containerd-shim" || true
	umount /var/lib/prop/by-host || true
	while umount /var/lib/prop/by-pod 2>/dev/null; do :; done
	systemctl stop rootlessnode-mountns-kubens
	"$node" mountns drop-in remove && "$node" mountns delete --force
}

# rootful: drop-ins put the kubelet and the runtime of a rootful node into a hidden mount namespace.
rootful() {
	local before stray code
	a_rootful_node && three_pods
	"$node" mountns drop-in containerd kubelet || return 1
	systemctl cat kubelet
	matrix no || return 1
	before=$(readlink "/proc/$(systemctl show -P MainPID kubelet)/ns/mnt")
	systemctl restart kubelet
	[ "$(readlink "/proc/$(systemctl show -P MainPID kubelet)/ns/mnt")" = "$before" ] || return 1
	[ "$before" != "$(readlink /proc/1/ns/mnt)" ] || return 1
	"$node" mountns status || return 1
	systemd-run --unit=stray "$tree/libexec/rootlessnode/containerd" --config /etc/rootful/containerd.toml --address /run/stray.sock --root /var/lib/stray --state /run/stray
	within 60 "a containerd in the wrong mount namespace" test -S /run/stray.sock || return 1
	stray=$(systemctl show -P MainPID stray)
	"$node" mountns status >/tmp/status 2>&1
	code=$?
	cat /tmp/status
	systemctl stop stray
	[ "$code" != 0 ] && grep -qw "$stray" /tmp/status || return 1
	no_rootful_node || return 1
	echo "with --visible:"
	"$node" mountns drop-in --visible containerd kubelet || return 1
	matrix yes || return 1
	no_rootful_node && rm -r /etc/rootful
}

# verified: runs `mounts verify` for a rootful node in the cluster of dev's service, with a hidden and a visible namespace.
verified() {
	local kubeconfig=/etc/rootful/kubeconfig
	a_rootful_node "--kubeconfig=$kubeconfig --hostname-override=rootful"
	as dev "$node kubeconfig" | install -m 0600 /dev/stdin "$kubeconfig"
	verified_as "1 yes, 2 yes, 3 no" && verified_as "1 yes, 2 yes, 3 yes" --visible || return 1
	as dev "$node kubectl delete node rootful"
	rm -r /etc/rootful
}

# verified_as ANSWER [FLAG]: checks the answer for the namespace that drop-in creates with FLAG.
verified_as() {
	"$node" mountns drop-in "${@:2}" containerd kubelet && systemctl start containerd kubelet && import_images || return 1
	within 300 "the rootful Node" as dev "$node kubectl get node rootful" || { journalctl --no-pager -n 60 -u kubelet; return 1; }
	"$node" mounts verify --kubeconfig /etc/rootful/kubeconfig --node rootful --image registry.k8s.io/pause:3.10.2 --timeout "$patience" |
		tee /tmp/verified
	[ "${PIPESTATUS[0]}" = 0 ] && grep -q "$1" /tmp/verified && no_rootful_node
}

echo "booted in $(cut -d. -f1 /proc/uptime) s, clock $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)" >/dev/ttyS1
if [ "$(cat /proc/1/comm)" != systemd ]; then
	verdict without_systemd without_systemd
elif [ -e "$rebooted" ]; then
	verdict back back
	verdict stopped stopped
	verdict uninstalled uninstalled
else
	verdict prepare prepare
	verdict missing_controllers missing_controllers
	verdict pasted pasted
	verdict scope_by_ssh scope_of login
	verdict scope_by_su scope_of by_su
	verdict scope_by_cron scope_of by_cron
	verdict rootful rootful
	verdict limits e2e 'Test(Limits|OwnCPUs)$'
	# The host runs its test only if this verdict is requested by name.
	[ ! -e "$share/key.pub" ] || verdict joined joined
	verdict policies policies
	verdict installed installed
	verdict killed killed
	verdict verified verified
	verdict mounts_cost mounts_cost
	verdict on_demand on_demand
	if grep -q ' installed ' "$share/verdicts"; then
		# Mount the program at boot, because the user manager starts the node then.
		echo "/dev/vdb $tree ext4 ro 0 0" >>/etc/fstab
		sed -i "s,mount -o ro /dev/vdb $tree,mountpoint -q $tree," /etc/systemd/system/guest.service
		touch "$rebooted"
		sync
		systemctl reboot --no-block
		exit
	fi
fi
echo "done" >>"$share/verdicts"
sync
poweroff --force --force
