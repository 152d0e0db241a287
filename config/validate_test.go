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
		{"logLevel", "loud", `logLevel: "loud": want one of debug, info, warning, error`},
		{"nodeName", "under_score", `nodeName: "under_score": want a DNS name in lower case (letters, digits, inner hyphens and dots) of at most 63`},
		{"nodeName", strings.Repeat("a", 64), "nodeName: \"" + strings.Repeat("a", 64) +
			`": want a DNS name in lower case (letters, digits, inner hyphens and dots) of at most 63`},
		{"nodeName", "", "nodeName: missing, and the host has no name to take"},
		{"dataDir", "", "dataDir: missing, and there is no XDG_DATA_HOME or home directory to put it in"},
		{"dataDir", "data", `dataDir: "data": want an absolute path, without . or .. or a trailing slash`},
		{"dataDir", "/a/../b", `dataDir: "/a/../b": want an absolute path, without . or .. or a trailing slash`},
		{"componentsDir", "/a/", `componentsDir: "/a/": want an absolute path, without . or .. or a trailing slash`},
		{"nodeLabels.a b", "c", `nodeLabels.a b: not a label: want [PREFIX/]NAME, the prefix a DNS name, the name at most 63 letters, digits, '-', '_' or '.'`},
		{"nodeLabels.a", "-", `nodeLabels.a: value "-": want at most 63 letters, digits, '-', '_' or '.', the first and last alphanumeric`},
		{"nodeLabels.rootlessnode.dev/x", "y", "nodeLabels.rootlessnode.dev/x: the node sets labels of rootlessnode.dev itself"},
		{"nodeLabels.node-role.kubernetes.io/worker", "", "nodeLabels.node-role.kubernetes.io/worker: the kubelet may not set this label of a reserved domain"},
		{"network.driver", "wifi", `network.driver: "wifi": want one of auto, slirp4netns, gvisor-tap-vsock, pasta, lxc-user-nic, vpnkit, none`},
		{"network.driver", "host", "network.driver: host: an account has no rights over the host's network namespace, so no CNI plugin could give a pod a network there"},
		{"network.mtu", "575", "network.mtu: 575: want 576 to 65535"},
		{"network.mtu", "65536", "network.mtu: 65536: want 576 to 65535"},
		{"network.cidr", "10.0.2.0/26", "network.cidr: 10.0.2.0/26: want a prefix of /8 to /25"},
		{"network.cidr", "10.0.2.1/24", "network.cidr: 10.0.2.1/24: has bits after its prefix, did you mean 10.0.2.0/24?"},
		{"network.nameServers", "127.0.0.53", "network.nameServers[0]: 127.0.0.53: the host's loopback is not the node's, nothing answers there"},
		{"network.nameServers", "1.1.1.1,1.1.1.2,1.1.1.3,1.1.1.4", "network.nameServers: 4 entries: resolv.conf takes 3"},
		{"cluster.podCIDR", "10.42", `cluster.podCIDR: "10.42": want an IPv4 range such as 10.42.0.0/16`},
		{"cluster.podCIDR", "fd00::/64", `cluster.podCIDR: "fd00::/64": want an IPv4 range such as 10.42.0.0/16`},
		{"cluster.podCIDRv6", "10.42.0.0/16", `cluster.podCIDRv6: "10.42.0.0/16": want an IPv6 range such as fd00:10:42::/56`},
		{"cluster.podCIDRv6", "fd00:10:42::/64", "cluster.podCIDRv6: fd00:10:42::/64: want a prefix of /48 to /62"},
		{"cluster.serviceCIDRv6", "fd00:10:43::1/112", "cluster.serviceCIDRv6: fd00:10:43::1/112: has bits after its prefix, did you mean fd00:10:43::/112?"},
		{"cluster.serviceCIDRv6", "fd00:10:43::/64", "cluster.serviceCIDRv6: fd00:10:43::/64: want a prefix of /108 to /124"},
		{"cluster.podCIDR", "127.0.0.0/16", "cluster.podCIDR: 127.0.0.0/16: a reserved range"},
		{"cluster.podCIDR", "10.42.0.0/25", "cluster.nodeCIDRMaskSize: 24: want 25 to 29 for cluster.podCIDR 10.42.0.0/25"},
		{"cluster.nodeCIDRMaskSize", "26", "kubelet.maxPods: 110 pods do not fit into the node's /26, which has room for 61"},
		{"cluster.dnsAddress", "10.44.0.10", "cluster.dnsAddress: 10.44.0.10 is not in cluster.serviceCIDR 10.43.0.0/16"},
		{"cluster.dnsAddress", "10.43.0.1", "cluster.dnsAddress: 10.43.0.1 is the address of the Service kubernetes"},
		{"cluster.dnsAddress", "10.43.255.255", "cluster.dnsAddress: 10.43.255.255 is the first or last address of cluster.serviceCIDR 10.43.0.0/16 and cannot be a Service's"},
		{"cluster.domain", "Cluster.local", `cluster.domain: "Cluster.local": want a DNS name in lower case such as cluster.local`},
		{"api.bindAddress", "localhost", `api.bindAddress: "localhost": want an IP address of the host, or 0.0.0.0 for all`},
		{"api.port", "0", "api.port: 0: want 1 to 65535"},
		{"api.extraSANs", "a_b", `api.extraSANs[0]: "a_b": want an IP address or a DNS name in lower case`},
		{"ports.driver", "socat", `ports.driver: "socat": want one of auto, builtin, slirp4netns, gvisor-tap-vsock, pesto, none`},
		{"ports.driver", "implicit", "ports.driver: implicit: pasta would open every port that something listens on inside, the control " +
			"plane's on all addresses of the host, and no NodePort, on which nothing listens"},
		{"ports.bindAddresses", "", "ports.bindAddresses: empty: forwarded ports need an address to listen on"},
		{"ports.externalIPs", "192.0.2.7,eth0", `ports.externalIPs[1]: "eth0": want an IP address or a CIDR`},
		{"ports.annotations.namespaces", "*,Team", `ports.annotations.namespaces[1]: "Team": want the name of a namespace, or * for all`},
		{"ports.maxForwards", "0", "ports.maxForwards: 0: want 1 to 131070"},
		{"ports.bindAddresses", "::1,::1", "ports.bindAddresses[1]: ::1 is there already"},
		{"ports.static", "80", `ports.static[0]: "80": want [HOSTIP:]HOSTPORT:NODEPORT[/tcp|/udp]`},
		{"ports.static", "6443:1", "ports.static[0]: host port 6443/tcp is that of api.port already"},
		{"ports.static", "0.0.0.0:6443:1", "ports.static[0]: host port 6443/tcp is that of api.port already"},
		{"ports.static", "1:2,1:3/udp,127.0.0.1:1:4", "ports.static[2]: host port 1/tcp is that of ports.static[0] already"},
		{"ports.static", "8000-8009:1-10,127.0.0.1:8009:9", "ports.static[1]: host port 8009/tcp is that of ports.static[0] already"},
		{"ports.bindAddresses", "fe80::1%eth0", `ports.bindAddresses[0]: "fe80::1%eth0": want an IP address of the host, 0.0.0.0 or :: for all, or the name of an interface`},
		{"ports.privilegedPortOffset", "1000", "ports.privilegedPortOffset: 1000: want 1023 to 64512"},
		{"ports.pickRange", "80-90", `ports.pickRange: "80-90": want ports from 1024 on`},
		{"network.hostPorts", "[5432, 5432]", "network.hostPorts[1]: 5432 is there already"},
		{"network.hostPorts", "[0]", "network.hostPorts[0]: 0: want 1 to 65535"},
		{"network.hostAddress", "127.0.0.2", `network.hostAddress: "127.0.0.2": want an IPv4 address that nothing else has, not of loopback`},
		{"network.hostAddress", "10.42.1.1", "network.hostAddress: 10.42.1.1 is in cluster.podCIDR 10.42.0.0/16"},
		{"mounts.copyUp", "/etc,/run,/var,/tmp", "mounts.copyUp[3]: /tmp cannot be copied up: RootlessKit works there itself"},
		{"mounts.copyUp", "/etc,/run,/var,/sys/fs", "mounts.copyUp[3]: /sys/fs cannot be copied up: it belongs to the kernel"},
		{"mounts.copyUp", "/etc,/run,/var,/var/lib", "mounts.copyUp[3]: /var/lib and mounts.copyUp[2] (/var) cover one another"},
		{"mounts.copyUp", "/etc,/run", "mounts.copyUp: /var is missing: components keep their files there"},
		{"mounts.propagation", "rshared", `mounts.propagation: "rshared": want one of rslave, rprivate`},
		{"subids.source", "nss", `subids.source: "nss": want one of auto, static, dynamic`},
		{"kubelet.maxPods", "0", "kubelet.maxPods: 0: want at least 1"},
		{"kubelet.maxPods", "254", "kubelet.maxPods: 254 pods do not fit into the node's /24, which has room for 253"},
		{"kubelet.evictionHard.disk", "1%", "kubelet.evictionHard.disk: no such signal: want one of memory.available, nodefs.available, " +
			"nodefs.inodesFree, imagefs.available, imagefs.inodesFree, containerfs.available, containerfs.inodesFree, pid.available"},
		{"kubelet.evictionHard.pid.available", "101%", `kubelet.evictionHard.pid.available: "101%": want a share such as "1%" or an amount such as "100Mi"`},
		{"kubelet.enforceNodeAllocatable", "all", `kubelet.enforceNodeAllocatable[0]: "all": want one of auto, none, pods, system-reserved, ` +
			`kube-reserved, system-reserved-compressible, kube-reserved-compressible`},
		{"kubelet.featureGates.KubeletInUserNamespace", "false", "kubelet.featureGates.KubeletInUserNamespace: must stay on: the kubelet does not start in a user namespace without it"},
		{"kubelet.imageGCLowThresholdPercent", "95", "kubelet.imageGCLowThresholdPercent: 95: want less than kubelet.imageGCHighThresholdPercent, which is 95"},
		{"kubelet.extraConfig.kind", "X", "kubelet.extraConfig.kind: cannot be changed"},
		{"kubelet.enforceNodeAllocatable", "auto,pods", "kubelet.enforceNodeAllocatable: auto stands alone"},
		{"resources.cpu", "two", `resources.cpu: "two": want a number of CPUs such as 2, 0.5 or 1500m`},
		{"resources.cpu", "-1", "resources.cpu: -1: want more than nothing; leave it out for no cap"},
		{"resources.cpu", "499m", "resources.cpu: 499m: want at least 500m, with less the components take minutes to start"},
		{"resources.memory", "4GB", `resources.memory: "4GB": want an amount of memory such as 4Gi or 6000M`},
		{"resources.memory", "0", "resources.memory: 0: want more than nothing; leave it out for no cap"},
		{"resources.memory", "767Mi", "resources.memory: 767Mi: want at least 768Mi, the components need that"},
		{"resources.memory", "1124Mi", "resources.memory: 1124Mi: nothing is left for pods after resources.systemReserved.memory, which is 1Gi, and " +
			`kubelet.evictionHard.memory.available, which is "100Mi"`},
		{"resources.pids", "-1", "resources.pids: -1: want 0 for no cap, or at least 512, the components need that"},
		{"resources.pids", "1024", "resources.pids: 1024: nothing is left for pods after resources.systemReserved.pids, which is 1024"},
		{"resources.systemReserved.cpu", "", `resources.systemReserved.cpu: "": want a number of CPUs such as 2, 0.5 or 1500m, or 0`},
		{"resources.systemReserved.memory", "-1Mi", "resources.systemReserved.memory: -1Mi: want 0 or more"},
		{"resources.systemReserved.pids", "-5", "resources.systemReserved.pids: -5: want 0 or more"},
		{"resources.podPids", "3", "resources.podPids: 3: want 0 for no limit of its own, or at least 16"},
		{"resources.cpuManager", "dynamic", `resources.cpuManager: "dynamic": want one of none, static`},
		{"resources.memoryHighPercent", "101", "resources.memoryHighPercent: 101: want 0 to 100"},
		{"kubeProxy.mode", "ipvs", `kubeProxy.mode: "ipvs": want one of auto, nftables, iptables`},
		{"containerd.snapshotter", "zfs", `containerd.snapshotter: "zfs": want one of auto, overlayfs, fuse-overlayfs, native`},
		{"containerd.pauseImage", "a b", `containerd.pauseImage: "a b": want an image reference such as registry.example.com/name:tag`},
		{"networkPolicy", "calico", `networkPolicy: "calico": want one of none, kube-network-policies`},
		{"podSecurity", "strict", `podSecurity: "strict": want one of privileged, baseline, restricted`},
		{"inside.networkPolicyPort", "8471", "inside.networkPolicyPort: 8471 is inside.flannelHealthzPort already"},
		{"flannel.backend", "udp", `flannel.backend: "udp": want one of vxlan, host-gw, wireguard`},
		{"controlPlane.apiServerExtraArgs", "v=4", `controlPlane.apiServerExtraArgs[0]: "v=4": want --FLAG=VALUE in one entry`},
		{"controlPlane.etcdQuotaBytes", "1", "controlPlane.etcdQuotaBytes: 1: want at least 67108864 bytes"},
		{"controlPlane.etcdElection", "49ms", "controlPlane.etcdElection: 49ms: want at least 5 times controlPlane.etcdHeartbeat, which is 10ms"},
		{"controlPlane.clientQPS", "0", "controlPlane.clientQPS: 0: want at least 1"},
		{"certificates.lifetime", "100000h", "certificates.lifetime: 100000h0m0s: want at most certificates.caLifetime, which is 87600h0m0s"},
		{"timeouts.health", "0s", "timeouts.health: 0s: want more than nothing"},
		{"timeouts.podStop", "2m", "timeouts.podStop: 2m0s: want at most timeouts.stop less timeouts.componentStop, which is 1m20s"},
		{"timeouts.podStop", "-1s", "timeouts.podStop: -1s: want more than nothing"},
		{"restart.giveUpAfter", "-1", "restart.giveUpAfter: -1: want 0 (never) or more"},
		{"inside.etcdPeerPort", "2379", "inside.etcdPeerPort: 2379 is inside.etcdClientPort already"},
		{"inside.kubeletPort", "70000", "inside.kubeletPort: 70000: want 1 to 65535"},
		{"flannel.vxlanPort", "0", "flannel.vxlanPort: 0: want 1 to 65535"},
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

func TestValidateTellsAllAtOnce(t *testing.T) {
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
	assert.Equal(t, len(errdefs.ReportOf(err).Hints), 1, "the same hint is told once")
}

func TestIPv6NeedsItsMTU(t *testing.T) {
	t.Parallel()
	c := complete()
	c.Network.IPv6, c.Network.MTU = true, 1279
	assert.Error(t, c.Validate(), "network.mtu: 1279: IPv6 (network.ipv6) needs at least 1350, for pods to have 1280")
	c.Flannel.Backend = "host-gw"
	assert.Error(t, c.Validate(), "network.mtu: 1279: IPv6 (network.ipv6) needs at least 1280, for pods to have 1280")
}

func TestIPv6RangesDoNotOverlap(t *testing.T) {
	t.Parallel()
	c := complete()
	c.Cluster.PodCIDRv6, c.Cluster.ServiceCIDRv6 = "fd00::/56", "fd00:0:0:ff::/112"
	assert.NilError(t, c.Validate(), "nothing has them")
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
	refused := func(want string, set map[string]string) {
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
	refused("", map[string]string{"resources.cpu": "0.5", "resources.memory": "1125Mi", "resources.pids": "1040", "resources.podPids": "16"})
	refused("resources.cpu: 2: nothing is left for pods after resources.systemReserved.cpu, which is 2",
		map[string]string{"resources.cpu": "2", "resources.systemReserved.cpu": "2"})
	refused("resources.podPids: 3073: resources.pids and resources.systemReserved.pids leave 3072 for all pods",
		map[string]string{"resources.pids": "4096", "resources.podPids": "3073"})
	refused("resources.cpuManager: static: resources.systemReserved.cpu must be more than 0: pods without CPUs of their own run there too",
		map[string]string{"resources.cpuManager": "static", "resources.systemReserved.cpu": "0"})
	refused("", map[string]string{"resources.cpuManager": "static", "resources.systemReserved.cpu": "0", "kubelet.extraConfig.reservedSystemCPUs": "0"})
	refused("resources.memoryHighPercent: needs kubelet.featureGates.MemoryQoS, which is switched off",
		map[string]string{"resources.memoryHighPercent": "90", "kubelet.featureGates.MemoryQoS": "false"})
	refused("resources.cpu: \"a\": want a number of CPUs such as 2, 0.5 or 1500m\n"+
		"resources.memory: 1Mi: want at least 768Mi, the components need that\n"+
		"resources.pids: 7: want 0 for no cap, or at least 512, the components need that",
		map[string]string{"resources.cpu": "a", "resources.memory": "1Mi", "resources.pids": "7"})
}

func TestUnenforcedSettings(t *testing.T) {
	t.Parallel()
	r := Default().Resources
	assert.Equal(t, len(r.Unenforced([]string{"cpu", "cpuset", "memory", "pids"})), 0, "nothing is asked for")
	r.CPU, r.Memory, r.Pids, r.PodPids, r.CPUManager, r.MemoryHighPercent = "2", "4Gi", 4096, 100, CPUManagerStatic, 90
	assert.DeepEqual(t, r.Unenforced([]string{"memory"}), []string{"resources.memory", "resources.memoryHighPercent"})
	assert.DeepEqual(t, r.Unenforced([]string{"pids", "cpuset", "cpu"}),
		[]string{"resources.cpu", "resources.pids", "resources.podPids", "resources.cpuManager"})
	assert.Equal(t, len(r.Unenforced([]string{"io"})), 0)
}
