package config

import "time"

// pauseImage is the pause image that is shipped with the components.
const pauseImage = "registry.k8s.io/pause:3.10.2"

// Default returns the default configuration, without the fields that depend on the host (NodeName, DataDir, ComponentsDir)
// or on other fields (Cluster.DNSAddress, Ports.BindAddresses). Complete sets most of them.
func Default() *NodeConfig {
	return &NodeConfig{
		APIVersion: APIVersion,
		Kind:       Kind,
		Name:       DefaultName,
		LogLevel:   "info",
		Network: Network{
			Driver: DriverAuto, MTU: 1500, CIDR: "10.0.2.0/24", SlirpSandbox: Auto, SlirpSeccomp: Auto, LXCBridge: "lxcbr0",
			HostAddress: "169.254.100.1",
		},
		Cluster: Cluster{
			PodCIDR: "10.42.0.0/16", ServiceCIDR: "10.43.0.0/16", Domain: "cluster.local", NodeCIDRMaskSize: 24,
			PodCIDRv6: "fd00:10:42::/56", ServiceCIDRv6: "fd00:10:43::/112",
		},
		API: API{BindAddress: "127.0.0.1", Port: 6443},
		Ports: Ports{
			Driver: DriverAuto, SourceIPTransparent: true, NodePorts: true, LoadBalancers: true, PodHostPorts: true,
			WaitForEndpoints: true, PickRange: "20000-29999", Annotations: PortAnnotations{Namespaces: []string{AllNamespaces}}, MaxForwards: 4096,
		},
		Mounts: Mounts{CopyUp: []string{"/etc", "/run", "/var", "/opt"}, Propagation: "rslave"},
		Subids: Subids{Source: "auto"},
		Resources: Resources{
			SystemReserved: SystemReserved{CPU: "250m", Memory: "1Gi", Pids: 1024}, CPUManager: CPUManagerNone,
		},
		Kubelet: Kubelet{
			MaxPods: 110,
			EvictionHard: map[string]string{
				"memory.available": "100Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%", "imagefs.available": "1%",
			},
			EnforceNodeAllocatable: []string{EnforceAuto}, SeccompDefault: true,
			ImageGCHighThresholdPercent: 95, ImageGCLowThresholdPercent: 90,
			NodeStatusUpdateFrequency: Duration(10 * time.Second),
		},
		KubeProxy: KubeProxy{Mode: "auto"},
		CNI:       CNIFlannel, NetworkPolicy: NetworkPolicyNone, PodSecurity: PodSecurityPrivileged,
		CRI:        CRI{Runtime: RuntimeContainerd},
		CRIO:       CRIO{StorageDriver: "auto", PauseImage: pauseImage},
		Containerd: Containerd{Snapshotter: "auto", PauseImage: pauseImage},
		Flannel:    Flannel{Backend: flannelVXLAN, VXLANPort: 8472},
		ControlPlane: ControlPlane{
			Embedded: true, EtcdSnapshotCount: 10000, EtcdQuotaBytes: 2 << 30,
			EtcdHeartbeat: Duration(10 * time.Millisecond), EtcdElection: Duration(100 * time.Millisecond),
			MaxRequestsInflight: 400, MaxMutatingRequestsInflight: 200, ClientQPS: 100, ClientBurst: 200,
			CoreDNS: true, CoreDNSImage: "registry.k8s.io/coredns/coredns:v1.15.0",
		},
		Certificates: Certificates{CALifetime: Duration(10 * 365 * 24 * time.Hour), Lifetime: Duration(365 * 24 * time.Hour)},
		Inside: Inside{
			APIServerPort: 6443, EtcdClientPort: 2379, EtcdPeerPort: 2380, EtcdMetricsPort: 2381,
			ControllerManagerPort: 10257, SchedulerPort: 10259, KubeletPort: 10250, KubeletHealthzPort: 10248,
			KubeProxyHealthzPort: 10256, KubeProxyMetricsPort: 10249, FlannelHealthzPort: 8471, NetworkPolicyPort: 8473,
		},
		Timeouts: Timeouts{
			Ready: Duration(5 * time.Minute), ComponentStart: Duration(2 * time.Minute), ComponentStop: Duration(10 * time.Second),
			Stop: Duration(90 * time.Second), Health: Duration(15 * time.Second),
		},
		Restart: Restart{
			Initial: Duration(200 * time.Millisecond), Max: Duration(30 * time.Second), ResetAfter: Duration(time.Minute), GiveUpAfter: 5,
		},
	}
}
