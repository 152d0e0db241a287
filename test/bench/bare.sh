#!/usr/bin/env bash
# bare.sh: a Kubernetes node as a careful shell script under RootlessKit's command line. The benchmarks compare rootlessnode with it
# (docs/benchmarks.md).
#
#   rootlesskit … bash bare.sh start SETUP DATA             starts a node, prints "ready", stops at SIGTERM
#   rootlesskit … bash bare.sh store SETUP DATA ARCHIVE…    only imports images into DATA/containerd
#
# SETUP is captured in advance from one of rootlessnode's nodes, which costs the script no time: command lines (cmd/), environments (env/),
# configuration files (run/), certificates, and ports of health endpoints (settings). So both sides start the same programs with the same
# flags and files. This script starts one program after the other, each when the health endpoint of the last one answers. Where there is a
# choice, it uses the faster way: curl instead of kubectl, one pause of 0.1 s, and no checks that the benchmark does not need.
# shellcheck disable=SC2154 # settings sets the variables
set -euo pipefail

what=$1 setup=$2 data=$3
shift 3
# shellcheck source=/dev/null # written by capture.go
. "$setup/settings"
pause=0.1 limit=90
export PATH=$components:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
declare -A pid

# start NAME: starts a component with its own command line and environment.
start() {
	local argv environ
	mapfile -t argv <"$setup/cmd/$1"
	mapfile -t environ <"$setup/env/$1"
	env -i "${environ[@]}" "${argv[@]}" >>"$data/log/$1.log" 2>&1 </dev/null &
	pid[$1]=$!
}

# await NAME CMD…: waits until CMD succeeds, then prints NAME. It fails when a component has ended or after a time limit.
await() {
	local name=$1 p
	shift
	local until=$((SECONDS + limit))
	until "$@" >/dev/null 2>&1; do
		for p in "${!pid[@]}"; do
			kill -0 "${pid[$p]}" 2>/dev/null || { echo "$p ended: $(tail -n 3 "$data/log/$p.log")" >&2; exit 1; }
		done
		[ $SECONDS -lt $until ] || { echo "$name is not there after $limit s" >&2; exit 1; }
		sleep $pause
	done
	echo "$name"
}

get() { curl --silent --fail --max-time 2 "$@"; }

# api PATH: sends a request to the API server as the administrator.
api() {
	local pki=/etc/kubernetes/pki
	get --cacert $pki/ca.crt --cert $pki/admin.crt --key $pki/admin.key "https://127.0.0.1:$api_port$1"
}

has_pod_cidr() { [[ $(api "/api/v1/nodes/$node") == *'"podCIDR"'* ]]; }

# is_ready: succeeds if the Node is Ready and the kubelet has reported it since this start. The object of an earlier run is Ready too.
is_ready() {
	local text ready
	text=$(api "/api/v1/nodes/$node") || return
	ready=$(tr -d ' \n' <<<"$text" | grep -o '{"type":"Ready","status":"True","lastHeartbeatTime":"[^"]*"') || return
	ready=${ready%\"} ready=${ready##*\"}
	[[ ! $ready < $began ]]
}

# own DIR: replaces copy-up's link to a directory of the host by a writable directory with links to its entries.
own() {
	local to
	if [ -L "$1" ]; then
		to=$(readlink -f "$1")
		rm "$1"
		mkdir "$1"
		find "$to" -mindepth 1 -maxdepth 1 -exec ln -s -t "$1" {} +
	fi
	mkdir -p "$1"
}

# keep NAME DIR: mounts a directory of the data dir, so that its files survive a stop.
keep() {
	mkdir -p "$data/$1"
	rm -rf "$2"
	mkdir -p "$2"
	mount --bind "$data/$1" "$2"
}

files() {
	local dir
	mkdir -p "$data/log"
	for dir in /var/lib /var/log /etc/cni; do own $dir; done
	for dir in /run/containerd /run/flannel /run/netns /run/runc /run/xtables.lock /etc/containerd; do rm -rf $dir; done
	keep kubernetes /etc/kubernetes
	keep etcd /var/lib/etcd
	chmod 0700 /var/lib/etcd
	keep containerd /var/lib/containerd
	keep kubelet /var/lib/kubelet
	keep cni /var/lib/cni
	keep cni-net.d /etc/cni/net.d
	keep pod-logs /var/log/pods
	keep container-logs /var/log/containers
	mkdir -p /run/flannel /var/lib/kubelet/volumeplugins
	cp -r "$setup/run" /run/rootlessnode
	# The last run's CNI configuration would make the Node Ready before flannel routes anything.
	rm -f /etc/cni/net.d/*
	mount --bind /dev/null /dev/kmsg
	mount --make-rshared /
}

network() {
	hostname "$node"
	echo "127.0.0.1 $node" >>/etc/hosts
	echo 1 >/proc/sys/net/ipv4/ip_forward
	echo 2 >/proc/sys/net/ipv4/conf/all/rp_filter
	echo 2 >/proc/sys/net/ipv4/conf/default/rp_filter
	if [ -e /proc/sys/net/bridge ]; then
		echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables
		echo 1 >/proc/sys/net/bridge/bridge-nf-call-ip6tables
	fi
}

cri() { ctr --namespace k8s.io "$@"; }

store() {
	local archive
	start containerd
	await containerd cri version
	for archive in "$@"; do cri images import "$archive" >&2; done
	echo ready
}

cluster() {
	local first=1
	began=$(date -u +%Y-%m-%dT%H:%M:%SZ)
	[ ! -e /var/lib/etcd/member ] || first=0

	start etcd
	await etcd get "http://127.0.0.1:$etcd_port/readyz"
	start kube-apiserver
	await kube-apiserver get --cacert /etc/kubernetes/pki/ca.crt "https://127.0.0.1:$api_port/readyz"
	start kube-controller-manager
	await kube-controller-manager get --insecure "https://127.0.0.1:$controller_manager_port/healthz"
	start kube-scheduler
	await kube-scheduler get --insecure "https://127.0.0.1:$scheduler_port/healthz"
	if [ $first = 1 ]; then # roles of flannel and other components, CoreDNS
		kubectl --kubeconfig /etc/kubernetes/admin.conf apply --server-side --validate=false -f "$setup/addons.yaml" >&2
		echo addons
	fi
	start containerd
	await containerd cri version
	start kubelet
	await kubelet get "http://127.0.0.1:$kubelet_port/healthz"
	await registered has_pod_cidr
	start flannel
	await flannel get "http://127.0.0.1:$flannel_port/readyz"
	cp "$setup/cni.conflist" /etc/cni/net.d/
	start kube-proxy
	await kube-proxy get "http://127.0.0.1:$proxy_port/healthz"
	await ready is_ready
}

# stop: stops the components in reverse order, and the pods after the kubelet.
stop() {
	local name task
	for name in kubelet kube-proxy flannel containerd kube-scheduler kube-controller-manager kube-apiserver etcd; do
		[ -n "${pid[$name]:-}" ] || continue
		if [ $name = containerd ]; then
			for task in $(timeout 10 ctr -n k8s.io tasks ls -q); do
				timeout 10 ctr -n k8s.io tasks kill -s KILL "$task" || true
			done
		fi
		kill "${pid[$name]}" 2>/dev/null || true
		wait "${pid[$name]}" || true
	done
	exit 0
} >/dev/null 2>&1

trap stop TERM INT
files
network
case $what in
start) cluster ;;
store) store "$@" ;;
*) echo "not understood: $what" >&2 && exit 2 ;;
esac
while :; do sleep 1 & wait $! || true; done
