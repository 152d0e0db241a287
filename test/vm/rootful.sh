# Creates the units and the configuration of a rootful node. $lib is the directory of the programs, $flags are flags of the kubelet.
# shellcheck shell=bash
set -eu
: "${lib:?}" "${flags=}"
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
	Environment="ARGS=--config=/etc/rootful/kubelet.yaml $flags"
	ExecStart=$lib/kubelet \$ARGS
	KillMode=process
UNIT
systemctl daemon-reload
