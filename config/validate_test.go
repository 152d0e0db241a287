package config

import (
	"fmt"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func complete() *NodeConfig {
	c := Default()
	c.Complete(HostFacts{Hostname: "node1", XDGDataHome: "/home/u/.local/share"})
	return c
}

func TestDefaultIsValid(t *testing.T) {
	t.Parallel()
	assert.NilError(t, complete().Validate())
}

func TestValidateRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ path, value, want string }{
		{"logLevel", "loud", `logLevel: "loud": must be one of debug, info, warning, error`},
		{"nodeName", "under_score", `nodeName: "under_score": must be a DNS name of at most 63 lower case letters, digits, hyphens and dots`},
		{"nodeName", strings.Repeat("a", 64), "nodeName: \"" + strings.Repeat("a", 64) +
			`": must be a DNS name of at most 63 lower case letters, digits, hyphens and dots`},
		{"nodeName", "", "nodeName: missing, and there is no default because the host has no name"},
		{"dataDir", "", "dataDir: missing, and there is no default because neither XDG_DATA_HOME nor a home directory is known"},
		{"dataDir", "data", `dataDir: "data": must be an absolute path without . or .. elements or a trailing slash`},
		{"dataDir", "/a/../b", `dataDir: "/a/../b": must be an absolute path without . or .. elements or a trailing slash`},
		{"componentsDir", "/a/", `componentsDir: "/a/": must be an absolute path without . or .. elements or a trailing slash`},
		{"kubernetesVersion", "v1.36.3", `kubernetesVersion: "v1.36.3": must be a minor version such as v1.37`},
		{"kubernetesVersion", "1.036", `kubernetesVersion: "1.036": must be a minor version such as v1.37`},
		{"kubernetesVersion", "latest", `kubernetesVersion: "latest": must be a minor version such as v1.37`},
		{"nodeLabels.a b", "c", `nodeLabels.a b: invalid label key: must have the form [PREFIX/]NAME, with a DNS name as PREFIX and at most 63 letters, digits, '-', '_' or '.' as NAME`},
		{"nodeLabels.a", "-", `nodeLabels.a: invalid value "-": must have at most 63 letters, digits, '-', '_' or '.', and begin and end with a letter or digit`},
		{"nodeLabels.rootlessnode.dev/x", "y", "nodeLabels.rootlessnode.dev/x: labels of rootlessnode.dev are set by the node only"},
		{"nodeLabels.node-role.kubernetes.io/worker", "", "nodeLabels.node-role.kubernetes.io/worker: the kubelet must not set this label, because its domain is reserved"},
		{"network.driver", "wifi", `network.driver: "wifi": must be one of auto, slirp4netns, gvisor-tap-vsock, pasta, lxc-user-nic, vpnkit, none`},
		{"network.driver", "host", "network.driver: host: not supported, because an ordinary user cannot configure networks of pods in the host's network namespace"},
		{"network.mtu", "575", "network.mtu: 575: must be between 576 and 65535"},
		{"network.mtu", "65536", "network.mtu: 65536: must be between 576 and 65535"},
		{"network.cidr", "10.0.2.0/26", "network.cidr: 10.0.2.0/26: must have a prefix length between /8 and /25"},
		{"network.cidr", "10.0.2.1/24", "network.cidr: 10.0.2.1/24: has host bits set, did you mean 10.0.2.0/24?"},
		{"network.nameServers", "127.0.0.53", "network.nameServers[0]: 127.0.0.53: loopback addresses of the host cannot be reached from inside the node"},
		{"network.nameServers", "1.1.1.1,1.1.1.2,1.1.1.3,1.1.1.4", "network.nameServers: 4 entries: resolv.conf supports at most 3"},
		{"cluster.podCIDR", "10.42", `cluster.podCIDR: "10.42": must be an IPv4 range such as 10.42.0.0/16`},
		{"cluster.podCIDR", "fd00::/64", `cluster.podCIDR: "fd00::/64": must be an IPv4 range such as 10.42.0.0/16`},
		{"cluster.podCIDRv6", "10.42.0.0/16", `cluster.podCIDRv6: "10.42.0.0/16": must be an IPv6 range such as fd00:10:42::/56`},
		{"cluster.podCIDRv6", "fd00:10:42::/64", "cluster.podCIDRv6: fd00:10:42::/64: must have a prefix length between /48 and /62"},
		{"cluster.serviceCIDRv6", "fd00:10:43::1/112", "cluster.serviceCIDRv6: fd00:10:43::1/112: has host bits set, did you mean fd00:10:43::/112?"},
		{"cluster.serviceCIDRv6", "fd00:10:43::/64", "cluster.serviceCIDRv6: fd00:10:43::/64: must have a prefix length between /108 and /124"},
		{"cluster.podCIDR", "127.0.0.0/16", "cluster.podCIDR: 127.0.0.0/16: is a reserved range"},
		{"cluster.podCIDR", "10.42.0.0/25", "cluster.nodeCIDRMaskSize: 24: must be between 25 and 29 for cluster.podCIDR 10.42.0.0/25"},
		{"cluster.nodeCIDRMaskSize", "26", "kubelet.maxPods: 110 pods do not fit into the node's /26, which has room for 61"},
		{"cluster.dnsAddress", "10.44.0.10", "cluster.dnsAddress: 10.44.0.10 is not in cluster.serviceCIDR 10.43.0.0/16"},
		{"cluster.dnsAddress", "10.43.0.1", "cluster.dnsAddress: 10.43.0.1 is the address of the Service kubernetes"},
		{"cluster.dnsAddress", "10.43.255.255", "cluster.dnsAddress: 10.43.255.255 is the first or last address of cluster.serviceCIDR 10.43.0.0/16 and cannot be used by a Service"},
		{"cluster.domain", "Cluster.local", `cluster.domain: "Cluster.local": must be a DNS name in lower case such as cluster.local`},
		{"api.bindAddress", "localhost", `api.bindAddress: "localhost": must be an IP address of the host, or 0.0.0.0 for all`},
		{"api.port", "-1", "api.port: -1: must be between 0 and 65535"},
		{"api.extraSANs", "a_b", `api.extraSANs[0]: "a_b": must be an IP address or a DNS name in lower case`},
		{"ports.driver", "socat", `ports.driver: "socat": must be one of auto, builtin, slirp4netns, gvisor-tap-vsock, pesto, none`},
		{"ports.driver", "implicit", "ports.driver: implicit: not supported, because pasta would forward every listening port of the node, those of the control plane " +
			"on all addresses of the host, but no NodePorts, for which there are no listeners"},
		{"ports.bindAddresses", "", "ports.bindAddresses: empty, but forwarded ports need an address to listen on"},
		{"ports.externalIPs", "192.0.2.7,eth0", `ports.externalIPs[1]: "eth0": must be an IP address or a CIDR`},
		{"ports.annotations.namespaces", "*,Team", `ports.annotations.namespaces[1]: "Team": must be the name of a namespace, or * for all`},
		{"ports.maxForwards", "0", "ports.maxForwards: 0: must be between 1 and 131070"},
		{"ports.bindAddresses", "::1,::1", "ports.bindAddresses[1]: ::1: duplicate entry"},
		{"ports.static", "80", `ports.static[0]: "80": must have the form [HOSTIP:]HOSTPORT:NODEPORT[/tcp|/udp]`},
		{"ports.static", "6443:1", "ports.static[0]: host port 6443/tcp is already used by api.port"},
		{"ports.static", "0.0.0.0:6443:1", "ports.static[0]: host port 6443/tcp is already used by api.port"},
		{"ports.static", "1:2,1:3/udp,127.0.0.1:1:4", "ports.static[2]: host port 1/tcp is already used by ports.static[0]"},
		{"ports.static", "8000-8009:1-10,127.0.0.1:8009:9", "ports.static[1]: host port 8009/tcp is already used by ports.static[0]"},
		{"ports.bindAddresses", "fe80::1%eth0", `ports.bindAddresses[0]: "fe80::1%eth0": must be an IP address of the host, 0.0.0.0 or :: for all, or the name of an interface`},
		{"ports.privilegedPortOffset", "1000", "ports.privilegedPortOffset: 1000: must be between 1023 and 64512"},
		{"ports.pickRange", "80-90", `ports.pickRange: "80-90": must not contain ports below 1024`},
		{"network.hostPorts", "[5432, 5432]", "network.hostPorts[1]: 5432: duplicate entry"},
		{"network.hostPorts", "[0]", "network.hostPorts[0]: 0: must be between 1 and 65535"},
		{"network.hostAddress", "127.0.0.2", `network.hostAddress: "127.0.0.2": must be an unused IPv4 address that is not a loopback address`},
		{"network.hostAddress", "10.42.1.1", "network.hostAddress: 10.42.1.1 is in cluster.podCIDR 10.42.0.0/16"},
		{"mounts.copyUp", "/etc,/run,/var,/tmp", "mounts.copyUp[3]: /tmp cannot be copied up: RootlessKit uses it itself"},
		{"mounts.copyUp", "/etc,/run,/var,/sys/fs", "mounts.copyUp[3]: /sys/fs cannot be copied up: it is a file system of the kernel"},
		{"mounts.copyUp", "/etc,/run,/var,/var/lib", "mounts.copyUp[3]: /var/lib and mounts.copyUp[2] (/var) overlap"},
		{"mounts.copyUp", "/etc,/run", "mounts.copyUp: /var is missing, but components store files there"},
		{"mounts.propagation", "rshared", `mounts.propagation: "rshared": must be one of rslave, rprivate`},
		{"subids.source", "nss", `subids.source: "nss": must be one of auto, static, dynamic`},
		{"kubelet.maxPods", "0", "kubelet.maxPods: 0: must be at least 1"},
		{"kubelet.maxPods", "254", "kubelet.maxPods: 254 pods do not fit into the node's /24, which has room for 253"},
		{"kubelet.evictionHard.disk", "1%", "kubelet.evictionHard.disk: unknown signal: must be one of memory.available, nodefs.available, " +
			"nodefs.inodesFree, imagefs.available, imagefs.inodesFree, containerfs.available, containerfs.inodesFree, pid.available"},
		{"kubelet.evictionHard.pid.available", "101%", `kubelet.evictionHard.pid.available: "101%": must be a percentage such as "1%" or a quantity such as "100Mi"`},
		{"kubelet.enforceNodeAllocatable", "all", `kubelet.enforceNodeAllocatable[0]: "all": must be one of auto, none, pods, system-reserved, ` +
			`kube-reserved, system-reserved-compressible, kube-reserved-compressible`},
		{"kubelet.featureGates.KubeletInUserNamespace", "false", "kubelet.featureGates.KubeletInUserNamespace: must not be disabled, because the kubelet does not start in a user namespace without it"},
		{"kubelet.imageGCLowThresholdPercent", "95", "kubelet.imageGCLowThresholdPercent: 95: must be less than kubelet.imageGCHighThresholdPercent, which is 95"},
		{"kubelet.extraConfig.kind", "X", "kubelet.extraConfig.kind: cannot be changed"},
		{"kubelet.enforceNodeAllocatable", "auto,pods", "kubelet.enforceNodeAllocatable: auto cannot be combined with other values"},
		{"resources.cpu", "two", `resources.cpu: "two": must be a number of CPUs such as 2, 0.5 or 1500m`},
		{"resources.cpu", "-1", "resources.cpu: -1: must be greater than zero; omit the field for no limit"},
		{"resources.cpu", "499m", "resources.cpu: 499m: must be at least 500m, because the components take minutes to start with less"},
		{"resources.memory", "4GB", `resources.memory: "4GB": must be an amount of memory such as 4Gi or 6000M`},
		{"resources.memory", "0", "resources.memory: 0: must be greater than zero; omit the field for no limit"},
		{"resources.memory", "767Mi", "resources.memory: 767Mi: must be at least 768Mi, which the components need"},
		{"resources.memory", "1124Mi", "resources.memory: 1124Mi: nothing is left for pods after resources.systemReserved.memory, which is 1Gi, and " +
			`kubelet.evictionHard.memory.available, which is "100Mi"`},
		{"resources.pids", "-1", "resources.pids: -1: must be 0 (no limit) or at least 512, which the components need"},
		{"resources.pids", "1024", "resources.pids: 1024: nothing is left for pods after resources.systemReserved.pids, which is 1024"},
		{"resources.systemReserved.cpu", "", `resources.systemReserved.cpu: "": must be a number of CPUs such as 2, 0.5 or 1500m, or 0`},
		{"resources.systemReserved.memory", "-1Mi", "resources.systemReserved.memory: -1Mi: must be 0 or greater"},
		{"resources.systemReserved.pids", "-5", "resources.systemReserved.pids: -5: must be 0 or greater"},
		{"resources.podPids", "3", "resources.podPids: 3: must be 0 (no separate limit) or at least 16"},
		{"resources.cpuManager", "dynamic", `resources.cpuManager: "dynamic": must be one of none, static`},
		{"resources.memoryHighPercent", "101", "resources.memoryHighPercent: 101: must be between 0 and 100"},
		{"kubeProxy.mode", "ipvs", `kubeProxy.mode: "ipvs": must be one of auto, nftables, iptables`},
		{"containerd.snapshotter", "zfs", `containerd.snapshotter: "zfs": must be one of auto, overlayfs, fuse-overlayfs, native`},
		{"containerd.pauseImage", "a b", `containerd.pauseImage: "a b": must be an image reference such as registry.example.com/name:tag`},
		{"networkPolicy", "calico", `networkPolicy: "calico": must be one of none, kube-network-policies`},
		{"podSecurity", "strict", `podSecurity: "strict": must be one of privileged, baseline, restricted`},
		{"inside.networkPolicyPort", "8471", "inside.networkPolicyPort: 8471 is already used by inside.flannelHealthzPort"},
		{"flannel.backend", "udp", `flannel.backend: "udp": must be one of vxlan, host-gw, wireguard`},
		{"controlPlane.apiServerExtraArgs", "v=4", `controlPlane.apiServerExtraArgs[0]: "v=4": must have the form --FLAG=VALUE`},
		{"controlPlane.etcdQuotaBytes", "1", "controlPlane.etcdQuotaBytes: 1: must be at least 67108864 bytes"},
		{"controlPlane.etcdElection", "49ms", "controlPlane.etcdElection: 49ms: must be at least 5 times controlPlane.etcdHeartbeat, which is 10ms"},
		{"controlPlane.clientQPS", "0", "controlPlane.clientQPS: 0: must be at least 1"},
		{"certificates.lifetime", "100000h", "certificates.lifetime: 100000h0m0s: must be at most certificates.caLifetime, which is 87600h0m0s"},
		{"timeouts.health", "0s", "timeouts.health: 0s: must be greater than zero"},
		{"timeouts.podStop", "2m", "timeouts.podStop: 2m0s: must be at most timeouts.stop minus timeouts.componentStop, which is 1m20s"},
		{"timeouts.podStop", "-1s", "timeouts.podStop: -1s: must be greater than zero"},
		{"restart.giveUpAfter", "-1", "restart.giveUpAfter: -1: must be 0 (never) or greater"},
		{"inside.etcdPeerPort", "2379", "inside.etcdPeerPort: 2379 is already used by inside.etcdClientPort"},
		{"inside.kubeletPort", "70000", "inside.kubeletPort: 70000: must be between 1 and 65535"},
		{"flannel.vxlanPort", "0", "flannel.vxlanPort: 0: must be between 1 and 65535"},
	} {
		t.Run(tc.path+"="+tc.value, func(t *testing.T) {
			t.Parallel()
			c := complete()
			assert.NilError(t, c.Set(tc.path, tc.value))
			err := c.Validate()
			assert.Error(t, err, tc.want)
			assert.ErrorIs(t, err, errdefs.ErrConfig)
		})
	}
}

func TestValidateNames(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"a": true, "test-2": true, strings.Repeat("a", 32): true,
		"": false, "a/b": false, "A": false, "-a": false, "a.b": false, strings.Repeat("a", 33): false, "..": false,
	} {
		c := complete()
		c.Name = name
		assert.Equal(t, c.Validate() == nil, ok, name)
	}
}

func TestValidateReportsAllErrors(t *testing.T) {
	t.Parallel()
	c := complete()
	c.Network.MTU, c.API.Port = 1, -1
	c.Cluster.PodCIDR, c.Cluster.ServiceCIDR, c.Network.CIDR = "10.0.0.0/8", "10.43.0.0/16", "10.0.2.0/24"
	err := c.Validate()
	for _, want := range []string{
		"network.mtu: 1:", "api.port: -1:",
		"cluster.serviceCIDR: 10.43.0.0/16 overlaps cluster.podCIDR 10.0.0.0/8",
		"network.cidr: 10.0.2.0/24 overlaps cluster.podCIDR 10.0.0.0/8",
	} {
		assert.ErrorContains(t, err, want)
	}
	assert.Equal(t, len(errdefs.ReportOf(err).Hints), 1, "the same hint is reported once")
}

func TestIPv6NeedsItsMTU(t *testing.T) {
	t.Parallel()
	c := complete()
	c.Network.IPv6, c.Network.MTU = true, 1279
	assert.Error(t, c.Validate(), "network.mtu: 1279: must be at least 1350 with network.ipv6, so that pods have an MTU of 1280")
	c.Flannel.Backend = "host-gw"
	assert.Error(t, c.Validate(), "network.mtu: 1279: must be at least 1280 with network.ipv6, so that pods have an MTU of 1280")
}

func TestIPv6RangesDoNotOverlap(t *testing.T) {
	t.Parallel()
	c := complete()
	c.Cluster.PodCIDRv6, c.Cluster.ServiceCIDRv6 = "fd00::/56", "fd00:0:0:ff::/112"
	assert.NilError(t, c.Validate(), "IPv6 is off")
	assert.DeepEqual(t, c.PodCIDRs(), []string{"10.42.0.0/16"})
	c.Network.IPv6 = true
	err := c.Validate()
	assert.ErrorContains(t, err, "cluster.podCIDRv6: fd00::/56 overlaps network.ipv6 fd00::/64")
	assert.ErrorContains(t, err, "cluster.serviceCIDRv6: fd00:0:0:ff::/112 overlaps cluster.podCIDRv6 fd00::/56")
	assert.DeepEqual(t, c.PodCIDRs(), []string{"10.42.0.0/16", "fd00::/56"})
	assert.DeepEqual(t, c.ServiceCIDRs(), []string{"10.43.0.0/16", "fd00:0:0:ff::/112"})
}

func TestValidatePairsOfDrivers(t *testing.T) {
	t.Parallel()
	networks := networkDrivers()
	own := map[string]string{"slirp4netns": "slirp4netns", "gvisor-tap-vsock": "gvisor-tap-vsock", "pesto": "pasta"}
	for _, ports := range portDrivers() {
		for _, network := range networks {
			c := complete()
			c.Network.Driver, c.Ports.Driver = network, ports
			err := c.Validate()
			if need := own[ports]; need == "" || network == need || network == DriverAuto {
				assert.NilError(t, err, "%s with %s", ports, network)
				continue
			}
			assert.Error(t, err, fmt.Sprintf("ports.driver: %s works with network.driver %s only, not with %s", ports, own[ports], network))
			assert.DeepEqual(t, errdefs.ReportOf(err).Hints, []string{
				"ports.driver: builtin    # works with every network driver\n# or network.driver: " + own[ports]})
		}
	}
}

func TestValidateFamiliesOfPortDrivers(t *testing.T) {
	t.Parallel()
	for driver, refused := range map[string]bool{"auto": false, "builtin": false, "slirp4netns": true, "gvisor-tap-vsock": true, "pesto": true} {
		c := complete()
		c.Ports.Driver, c.Ports.BindAddresses, c.API.BindAddress = driver, []string{"127.0.0.1", "::1"}, "::1"
		err := c.Validate()
		assert.Equal(t, err != nil, refused, driver)
		if refused {
			assert.ErrorContains(t, err, "api.bindAddress: ::1: ports.driver "+driver+" forwards IPv4 only")
			assert.ErrorContains(t, err, "ports.bindAddresses[1]: ::1: ports.driver "+driver+" forwards IPv4 only")
		}
	}
	c := complete()
	c.Ports.Driver, c.Ports.BindAddresses, c.Network.IPv6 = "pesto", []string{"::1"}, true
	assert.NilError(t, c.Validate())
}

func TestValidateResourcesTogether(t *testing.T) {
	t.Parallel()
	check := func(want string, set map[string]string) {
		t.Helper()
		c := complete()
		for path, v := range set {
			assert.NilError(t, c.Set(path, v))
		}
		if want == "" {
			assert.NilError(t, c.Validate())
			return
		}
		assert.Error(t, c.Validate(), want)
	}
	check("", map[string]string{"resources.cpu": "0.5", "resources.memory": "1125Mi", "resources.pids": "1040", "resources.podPids": "16"})
	check("resources.cpu: 2: nothing is left for pods after resources.systemReserved.cpu, which is 2",
		map[string]string{"resources.cpu": "2", "resources.systemReserved.cpu": "2"})
	check("resources.podPids: 3073: must be at most 3072, which resources.pids and resources.systemReserved.pids leave for pods",
		map[string]string{"resources.pids": "4096", "resources.podPids": "3073"})
	check("resources.cpuManager: static: resources.systemReserved.cpu must be greater than zero, because pods without exclusive CPUs run there",
		map[string]string{"resources.cpuManager": "static", "resources.systemReserved.cpu": "0"})
	check("", map[string]string{"resources.cpuManager": "static", "resources.systemReserved.cpu": "0", "kubelet.extraConfig.reservedSystemCPUs": "0"})
	check("resources.memoryHighPercent: requires kubelet.featureGates.MemoryQoS, which is disabled",
		map[string]string{"resources.memoryHighPercent": "90", "kubelet.featureGates.MemoryQoS": "false"})
	check("resources.cpu: \"a\": must be a number of CPUs such as 2, 0.5 or 1500m\n"+
		"resources.memory: 1Mi: must be at least 768Mi, which the components need\n"+
		"resources.pids: 7: must be 0 (no limit) or at least 512, which the components need",
		map[string]string{"resources.cpu": "a", "resources.memory": "1Mi", "resources.pids": "7"})
}

func TestUnenforcedSettings(t *testing.T) {
	t.Parallel()
	r := Default().Resources
	assert.Equal(t, len(r.Unenforced([]string{"cpu", "cpuset", "memory", "pids"})), 0, "nothing is set")
	r.CPU, r.Memory, r.Pids, r.PodPids, r.CPUManager, r.MemoryHighPercent = "2", "4Gi", 4096, 100, CPUManagerStatic, 90
	assert.DeepEqual(t, r.Unenforced([]string{"memory"}), []string{"resources.memory", "resources.memoryHighPercent"})
	assert.DeepEqual(t, r.Unenforced([]string{"pids", "cpuset", "cpu"}),
		[]string{"resources.cpu", "resources.pids", "resources.podPids", "resources.cpuManager"})
	assert.Equal(t, len(r.Unenforced([]string{"io"})), 0)
}
