package config

// EnforceAuto in Kubelet.EnforceNodeAllocatable is rootlessnode's own value; the others are the kubelet's.
const EnforceAuto = "auto"

// CPU managers.
const (
	CPUManagerNone = "none"
	// CPUManagerStatic assigns exclusive CPUs to containers of Guaranteed pods that request whole CPUs.
	CPUManagerStatic = "static"
)

// Resources limits the whole node and reserves a part for the components.
type Resources struct {
	// CPU time, in CPUs: 2, 0.5 or 1500m; at least 500m. Default: no limit.
	CPU Quantity `json:"cpu,omitempty" example:"1500m" check:"limit a number of CPUs such as 2, 0.5 or 1500m"`
	// Memory: 4Gi, 6000M; at least 768Mi. If it is used up, the kernel kills processes of the node, and no others. Default: no
	// limit.
	Memory Quantity `json:"memory,omitempty" example:"4Gi" check:"limit an amount of memory such as 4Gi or 6000M"`
	// Processes and threads, at least 512. Default: no limit.
	Pids int `json:"pids,omitempty" example:"4096"`
	// The part of the limit (or of the machine, if there is no limit) that is for the components and not for pods.
	SystemReserved SystemReserved `json:"systemReserved"`
	// The maximum number of processes and threads of one pod. 0: resources.pids minus systemReserved.pids, or no limit without
	// resources.pids.
	PodPids int `json:"podPids" default:"0" reload:"yes"`
	// none or static. With static, containers of Guaranteed pods that request whole CPUs get exclusive CPUs. It needs the
	// controller cpuset.
	CPUManager string `json:"cpuManager" default:"none" check:"oneof none static"`
	// Slows a container down (memory.high) before it is killed at its memory limit: from this percentage of the way from its
	// request to its limit. 0: never. Kubernetes recommends 90 if you use it.
	MemoryHighPercent int `json:"memoryHighPercent" default:"0" check:"range 0 100" reload:"yes"`
}

// SystemReserved is the part of the node that is not available to pods.
type SystemReserved struct {
	// CPU time. With cpuManager static, it is rounded up to whole CPUs.
	CPU Quantity `json:"cpu" default:"250m" check:"reservation a number of CPUs such as 2, 0.5 or 1500m"`
	// Memory.
	Memory Quantity `json:"memory" default:"1Gi" check:"reservation an amount of memory such as 4Gi or 6000M"`
	// Processes and threads.
	Pids int `json:"pids" default:"1024"`
}

// Kubelet has the settings of the kubelet.
type Kubelet struct {
	// The maximum number of pods on the node.
	MaxPods int `json:"maxPods" default:"110" check:"min 1" reload:"yes"`
	// Signals and the thresholds below which pods are evicted. Entries are added to these; "0%" disables one. The defaults are
	// low, for full disks of developers.
	EvictionHard map[string]string `json:"evictionHard" default:"{imagefs.available: 1%, memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%}"`
	// The cgroups that the kubelet limits as a whole: auto (pods, if the controllers cpu, memory and pids are delegated), or a
	// list of pods, system-reserved, kube-reserved. Empty: none.
	EnforceNodeAllocatable []string `json:"enforceNodeAllocatable" default:"[auto]"`
	// Applies the runtime's default seccomp profile to containers without a profile, if the kernel and runc can filter system
	// calls. Privileged containers and those with the profile Unconfined are not confined. With false, a container must set
	// RuntimeDefault to be confined.
	SeccompDefault bool `json:"seccompDefault" default:"true"`
	// Pulls images with the logins of the account: those of docker and podman on the host. All pods of the node can then use the
	// images that the account can pull. With false, pods need imagePullSecrets. See docs/registries.md.
	RegistryLogins bool `json:"registryLogins" default:"true"`
	// Feature gates by name.
	FeatureGates map[string]bool `json:"featureGates,omitempty" example:"{SomeGate: true}" reload:"yes"`
	// The disk usage in percent above which unused images are deleted.
	ImageGCHighThresholdPercent int `json:"imageGCHighThresholdPercent" default:"95" check:"range 0 100" reload:"yes"`
	// The disk usage in percent at which the deletion of images ends.
	ImageGCLowThresholdPercent int `json:"imageGCLowThresholdPercent" default:"90" check:"range 0 100" reload:"yes"`
	// The interval at which the kubelet checks whether its Node object is up to date.
	NodeStatusUpdateFrequency Duration `json:"nodeStatusUpdateFrequency" default:"10s" check:"positive" reload:"yes"`
	// Fields of the KubeletConfiguration (kubelet.config.k8s.io/v1beta1), merged into the configuration of the node. A change of a
	// field that the node depends on can break the node.
	ExtraConfig map[string]any `json:"extraConfig,omitempty" example:"{serializeImagePulls: false}" reload:"yes"`
}

// KubeProxy has the settings of kube-proxy.
type KubeProxy struct {
	// auto (nftables if the kernel supports it, else iptables), nftables or iptables.
	Mode string `json:"mode" default:"auto" check:"oneof auto nftables iptables"`
}

// Containerd has the settings of containerd.
type Containerd struct {
	// overlayfs, fuse-overlayfs, native, or auto for the first of these that works.
	Snapshotter string `json:"snapshotter" default:"auto" check:"oneof auto overlayfs fuse-overlayfs native" instead:"crio.storageDriver"`
	// The image of the pod sandboxes. It is imported from the images that are shipped with the components.
	PauseImage string `json:"pauseImage" default:"registry.k8s.io/pause:3.10.2" check:"image" instead:"crio.pauseImage"`
	// Enables the Node Resource Interface, on a socket inside the node.
	NRI bool `json:"nri" default:"false" instead:"crio.nri" reload:"yes"`
	// More OCI runtimes, by the name of their RuntimeClass: the paths of programs on the host with runc's command line. See
	// docs/runtimes.md.
	Runtimes map[string]string `json:"runtimes,omitempty" example:"{crun: /usr/bin/crun}"`
	// Adds crun, youki and runsc (gVisor) to containerd.runtimes if they are on PATH.
	DetectRuntimes bool `json:"detectRuntimes" default:"true"`
	// A directory on the host with a hosts.toml file for each registry, as containerd reads it (mirrors, certificates).
	RegistryConfigDir string `json:"registryConfigDir,omitempty" example:"/home/user/.config/containerd/certs.d" check:"path" instead:"crio.registriesConf"`
}

// Flannel has the settings of flannel.
type Flannel struct {
	// vxlan, host-gw or wireguard.
	Backend string `json:"backend" default:"vxlan" check:"oneof vxlan host-gw wireguard"`
	// UDP port of the vxlan backend inside the node.
	VXLANPort int `json:"vxlanPort" default:"8472" check:"range 1 65535"`
}

// ControlPlane has the settings of the control plane.
type ControlPlane struct {
	// Runs etcd, kube-apiserver, kube-controller-manager and kube-scheduler inside this node.
	Embedded bool `json:"embedded" default:"true"`
	// The number of writes after which etcd makes a snapshot and truncates its log.
	EtcdSnapshotCount int `json:"etcdSnapshotCount" default:"10000" check:"min 1" reload:"yes"`
	// The maximum size of etcd's database in bytes, at least 67108864 (64 MiB). It cannot be smaller than the data on disk.
	EtcdQuotaBytes int64 `json:"etcdQuotaBytes" default:"2147483648" check:"min 67108864 bytes"`
	// Allows etcd to respond before its writes are on the disk. This is faster, but the cluster can be lost if the host crashes.
	// For tests.
	EtcdUnsafeNoFsync bool `json:"etcdUnsafeNoFsync" default:"false"`
	// The heartbeat interval of etcd's leader. It can be short, because there is only one member.
	EtcdHeartbeat Duration `json:"etcdHeartbeat" default:"10ms" check:"positive" reload:"yes"`
	// The time without a leader after which etcd elects one. At start, etcd serves after up to twice this time.
	EtcdElection Duration `json:"etcdElection" default:"100ms" check:"positive" reload:"yes"`
	// The maximum number of concurrent read requests of the API server.
	MaxRequestsInflight int `json:"maxRequestsInflight" default:"400" check:"min 1" reload:"yes"`
	// The maximum number of concurrent write requests of the API server.
	MaxMutatingRequestsInflight int `json:"maxMutatingRequestsInflight" default:"200" check:"min 1" reload:"yes"`
	// The API requests per second that controller manager, scheduler, kubelet and kube-proxy may each send.
	ClientQPS int `json:"clientQPS" default:"100" check:"min 1" reload:"yes"`
	// The number of API requests that each of them may send in a burst.
	ClientBurst int `json:"clientBurst" default:"200" check:"min 1" reload:"yes"`
	// Additional flags for kube-apiserver, each "--flag=value".
	APIServerExtraArgs []string `json:"apiServerExtraArgs,omitempty" example:"[\"--v=4\"]" check:"argument" reload:"yes"`
	// Additional flags for kube-controller-manager.
	ControllerManagerExtraArgs []string `json:"controllerManagerExtraArgs,omitempty" example:"[\"--v=4\"]" check:"argument" reload:"yes"`
	// Additional flags for kube-scheduler.
	SchedulerExtraArgs []string `json:"schedulerExtraArgs,omitempty" example:"[\"--v=4\"]" check:"argument" reload:"yes"`
	// Deploys the cluster DNS.
	CoreDNS bool `json:"coreDNS" default:"true"`
	// The image of the cluster DNS. It is imported from the images that are shipped with the components.
	CoreDNSImage string `json:"coreDNSImage" default:"registry.k8s.io/coredns/coredns:v1.15.0"`
}

// Metrics has the settings of metrics-server.
type Metrics struct {
	// Runs metrics-server, next to the control plane. Set it to false before you install a metrics-server of your own.
	Enabled bool `json:"enabled" default:"true"`
	// The interval at which usage is collected from kubelets, at least 10s.
	Interval Duration `json:"interval" default:"10s" check:"atLeast 10s"`
}

// Certificates has the settings of the certificates of the embedded control plane.
type Certificates struct {
	// Lifetime of a new certificate authority, at least certificates.lifetime.
	CALifetime Duration `json:"caLifetime" default:"87600h0m0s" check:"positive"`
	// Lifetime of a new certificate, at least 10m, also of those that the cluster issues to other nodes and to users
	// (there at least an hour).
	Lifetime Duration `json:"lifetime" default:"8760h0m0s"`
}

// Inside are the TCP ports of components in the node's network namespace. They can conflict only with hostNetwork pods,
// because these use the node's network namespace.
type Inside struct {
	// kube-apiserver, https.
	APIServerPort int `json:"apiServerPort" default:"6443" check:"range 1 65535"`
	// etcd for its clients.
	EtcdClientPort int `json:"etcdClientPort" default:"2379" check:"range 1 65535"`
	// etcd for its peers.
	EtcdPeerPort int `json:"etcdPeerPort" default:"2380" check:"range 1 65535"`
	// etcd's health and metrics.
	EtcdMetricsPort int `json:"etcdMetricsPort" default:"2381" check:"range 1 65535"`
	// kube-controller-manager's health and metrics.
	ControllerManagerPort int `json:"controllerManagerPort" default:"10257" check:"range 1 65535"`
	// kube-scheduler's health and metrics.
	SchedulerPort int `json:"schedulerPort" default:"10259" check:"range 1 65535"`
	// The kubelet's API, which logs and exec use.
	KubeletPort int `json:"kubeletPort" default:"10250" check:"range 1 65535"`
	// The kubelet's health.
	KubeletHealthzPort int `json:"kubeletHealthzPort" default:"10248" check:"range 1 65535"`
	// kube-proxy's health.
	KubeProxyHealthzPort int `json:"kubeProxyHealthzPort" default:"10256" check:"range 1 65535"`
	// kube-proxy's metrics.
	KubeProxyMetricsPort int `json:"kubeProxyMetricsPort" default:"10249" check:"range 1 65535"`
	// flannel's health.
	FlannelHealthzPort int `json:"flannelHealthzPort" default:"8471" check:"range 1 65535"`
	// kube-network-policies' health and metrics.
	NetworkPolicyPort int `json:"networkPolicyPort" default:"8473" check:"range 1 65535"`
	// storage-provisioner's health and metrics.
	StoragePort int `json:"storagePort" default:"8474" check:"range 1 65535"`
	// metrics-server, https.
	MetricsServerPort int `json:"metricsServerPort" default:"10260" check:"range 1 65535"`
}

// Timeouts are the time limits of the node.
type Timeouts struct {
	// How long `up` waits until the node can be used.
	Ready Duration `json:"ready" default:"5m0s" check:"positive" reload:"yes"`
	// How long a component may take to become ready for the first time.
	ComponentStart Duration `json:"componentStart" default:"2m0s" check:"positive"`
	// How long a component may take to stop before it is killed.
	ComponentStop Duration `json:"componentStop" default:"10s" check:"positive"`
	// How long all pods together may take to stop at `down`, regardless of their grace periods. 0s: timeouts.stop minus 30s for
	// the rest of the node (minus half of it, if it is below 60s), at most 60s.
	PodStop Duration `json:"podStop" default:"0s" check:"positive"`
	// How long the whole node may take to stop before it is killed. At least timeouts.podStop and timeouts.componentStop together.
	Stop Duration `json:"stop" default:"1m30s" check:"positive"`
	// How long one health probe may take.
	Health Duration `json:"health" default:"15s" check:"positive"`
}

// Restart configures the restarts of a component that exits unexpectedly.
type Restart struct {
	// The delay before the first restart. It doubles with each further restart.
	Initial Duration `json:"initial" default:"200ms" check:"positive"`
	// The maximum delay.
	Max Duration `json:"max" default:"30s" check:"positive"`
	// The time of being ready after which the delay is reset to restart.initial.
	ResetAfter Duration `json:"resetAfter" default:"1m0s" check:"positive"`
	// The number of consecutive starts without becoming ready after which the node fails. 0: never.
	GiveUpAfter int `json:"giveUpAfter" default:"5"`
}
