package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Limits that are not the kernel's or Kubernetes' own.
const (
	// minMTU is IPv4's smallest datagram that every host must take (RFC 791), minMTUv6 the least link MTU of IPv6
	// (RFC 8200), maxMTU the length field's end.
	minMTU, minMTUv6, maxMTU = 576, 1280, 65535
	// maxNameServers is resolv.conf's MAXNS, which the kubelet keeps to.
	maxNameServers = 3
	// minEtcdQuota is the size of a freshly filled cluster's store, with room to write.
	minEtcdQuota = 64 << 20
)

// Validate checks c, which should be complete (Complete), without looking at the host. It returns nil or one error of
// class errdefs.ErrConfig that joins every fault, each headed by its field's path and with a hint where there is a way
// out that the text does not name itself.
func (c *NodeConfig) Validate() error {
	var fs faults
	c.validateIdentity(&fs)
	c.validateNetwork(&fs)
	c.validateCluster(&fs)
	c.validateOverlaps(&fs)
	c.validateJoin(&fs)
	c.validatePorts(&fs)
	c.validateMounts(&fs)
	c.validateResources(&fs)
	c.validateKubelet(&fs)
	c.validateComponents(&fs)
	c.validateRuntime(&fs)
	c.validateInside(&fs)
	c.validateTimes(&fs)
	return errdefs.Class(errdefs.ErrConfig, fs.err())
}

// Permitted values of the fields that are a choice.
func logLevels() []string { return []string{"debug", "info", "warning", "error"} }
func networkDrivers() []string {
	return []string{DriverAuto, DriverSlirp, DriverGvisor, DriverPasta, DriverLXCUserNIC, DriverVPNKit, DriverNone}
}
func portDrivers() []string {
	return []string{DriverAuto, PortsBuiltin, DriverSlirp, DriverGvisor, PortsPesto, DriverNone}
}
func evictionSignals() []string {
	return []string{
		"memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree",
		"containerfs.available", "containerfs.inodesFree", "pid.available",
	}
}

func oneOf(fs *faults, field, value string, permitted ...string) {
	if !slices.Contains(permitted, value) {
		fs.add(field, "", "%q: want one of %s", value, strings.Join(permitted, ", "))
	}
}

func inRange(fs *faults, field string, value, low, high int) {
	if value < low || value > high {
		fs.add(field, "", "%d: want %d to %d", value, low, high)
	}
}

func (c *NodeConfig) validateIdentity(fs *faults) {
	oneOf(fs, "apiVersion", c.APIVersion, APIVersion)
	oneOf(fs, "kind", c.Kind, Kind)
	oneOf(fs, "logLevel", c.LogLevel, logLevels()...)
	if !isDNSLabel(c.Name) || len(c.Name) > maxNameLength {
		fs.add("name", "use --name with a name such as "+DefaultName+" or test-2",
			"%q: want at most %d lower case letters, digits and inner hyphens", c.Name, maxNameLength)
	}
	switch {
	case c.NodeName == "":
		fs.add("nodeName", "nodeName: node1", "missing, and the host has no name to take")
	case !ValidNodeName(c.NodeName):
		fs.add("nodeName", "nodeName: node1    # it is the host's name unless set",
			"%q: want a DNS name in lower case (letters, digits, inner hyphens and dots) of at most %d", c.NodeName, maxNodeNameLength)
	}
	for _, k := range sortedKeys(c.NodeLabels) {
		c.validateLabel(fs, k)
	}
	if c.DataDir == "" {
		fs.add("dataDir", "", "missing, and there is no XDG_DATA_HOME or home directory to put it in")
	} else {
		absolute(fs, "dataDir", c.DataDir)
	}
	if c.ComponentsDir != "" {
		absolute(fs, "componentsDir", c.ComponentsDir)
	}
}

func (c *NodeConfig) validateLabel(fs *faults, key string) {
	at, value := "nodeLabels."+key, c.NodeLabels[key]
	switch {
	case !isLabelKey(key):
		fs.add(at, "", "not a label: want [PREFIX/]NAME, the prefix a DNS name, the name at most %d letters, digits, '-', '_' or '.'",
			maxLabelNameLength)
	case strings.HasPrefix(key, "rootlessnode.dev/"):
		fs.add(at, "", "the node sets labels of rootlessnode.dev itself")
	case !kubeletMaySet(key):
		fs.add(at, "use a prefix of your own, node.kubernetes.io or kubelet.kubernetes.io",
			"the kubelet may not set this label of a reserved domain")
	}
	if value != "" && !isLabelName(value) {
		fs.add(at, "", "value %q: want at most %d letters, digits, '-', '_' or '.', the first and last alphanumeric",
			value, maxLabelNameLength)
	}
}

func absolute(fs *faults, field, path string) {
	if !isAbsolute(path) {
		fs.add(field, "", "%q: want an absolute path, without . or .. or a trailing slash", path)
	}
}

func (c *NodeConfig) validateMounts(fs *faults) {
	dirs := c.Mounts.CopyUp
	for i, d := range dirs {
		at := fmt.Sprintf("mounts.copyUp[%d]", i)
		absolute(fs, at, d)
		if reason := noCopyUp(d); reason != "" {
			fs.add(at, "", "%s cannot be copied up: %s", d, reason)
		}
		for j, other := range dirs[:i] {
			if d == other || strings.HasPrefix(d, other+"/") || strings.HasPrefix(other, d+"/") {
				fs.add(at, "", "%s and mounts.copyUp[%d] (%s) cover one another", d, j, other)
			}
		}
	}
	for _, needed := range []string{"/etc", "/run", "/var"} {
		if !slices.Contains(dirs, needed) {
			fs.add("mounts.copyUp", "copyUp: [/etc, /run, /var, /opt]", "%s is missing: components keep their files there", needed)
		}
	}
	oneOf(fs, "mounts.propagation", c.Mounts.Propagation, "rslave", "rprivate")
	oneOf(fs, "subids.source", c.Subids.Source, "auto", "static", "dynamic")
}

// noCopyUp says why RootlessKit cannot copy up dir, or nothing.
func noCopyUp(dir string) string {
	for _, kernel := range []string{"/proc", "/sys", "/dev"} {
		if dir == kernel || strings.HasPrefix(dir, kernel+"/") {
			return "it belongs to the kernel"
		}
	}
	switch dir {
	case "/":
		return "it would cover everything"
	case "/tmp":
		return "RootlessKit works there itself"
	}
	return ""
}

func (c *NodeConfig) validateComponents(fs *faults) {
	oneOf(fs, "kubeProxy.mode", c.KubeProxy.Mode, "auto", "nftables", "iptables")
	oneOf(fs, "containerd.snapshotter", c.Containerd.Snapshotter, "auto", "overlayfs", "fuse-overlayfs", "native")
	oneOf(fs, "cni", c.CNI, CNIFlannel, CNINone)
	oneOf(fs, "networkPolicy", c.NetworkPolicy, NetworkPolicyNone, NetworkPolicyKube)
	c.validatePodSecurity(fs)
	oneOf(fs, "flannel.backend", c.Flannel.Backend, flannelVXLAN, "host-gw", "wireguard")
	image(fs, "containerd.pauseImage", c.Containerd.PauseImage)
	if c.Containerd.RegistryConfigDir != "" {
		absolute(fs, "containerd.registryConfigDir", c.Containerd.RegistryConfigDir)
	}
	cp := c.ControlPlane
	if cp.CoreDNS {
		image(fs, "controlPlane.coreDNSImage", cp.CoreDNSImage)
	}
	if cp.EtcdSnapshotCount < 1 {
		fs.add("controlPlane.etcdSnapshotCount", "", "%d: want at least 1", cp.EtcdSnapshotCount)
	}
	if cp.EtcdQuotaBytes < minEtcdQuota {
		fs.add("controlPlane.etcdQuotaBytes", "", "%d: want at least %d bytes", cp.EtcdQuotaBytes, int64(minEtcdQuota))
	}
	c.validateControlPlaneLimits(fs)
	for field, args := range map[string][]string{
		"controlPlane.apiServerExtraArgs":         cp.APIServerExtraArgs,
		"controlPlane.controllerManagerExtraArgs": cp.ControllerManagerExtraArgs,
		"controlPlane.schedulerExtraArgs":         cp.SchedulerExtraArgs,
	} {
		for i, a := range args {
			if !strings.HasPrefix(a, "--") {
				fs.add(fmt.Sprintf("%s[%d]", field, i), "", "%q: want --FLAG=VALUE in one entry", a)
			}
		}
	}
}

// etcdPatience is how many heartbeats etcd demands an election timeout to have.
const etcdPatience = 5

func (c *NodeConfig) validateControlPlaneLimits(fs *faults) {
	cp := c.ControlPlane
	if cp.EtcdElection < etcdPatience*cp.EtcdHeartbeat {
		fs.add("controlPlane.etcdElection", "", "%s: want at least %d times controlPlane.etcdHeartbeat, which is %s",
			cp.EtcdElection.D(), etcdPatience, cp.EtcdHeartbeat.D())
	}
	for _, n := range []struct {
		field string
		value int
	}{
		{"controlPlane.maxRequestsInflight", cp.MaxRequestsInflight},
		{"controlPlane.maxMutatingRequestsInflight", cp.MaxMutatingRequestsInflight},
		{"controlPlane.clientQPS", cp.ClientQPS}, {"controlPlane.clientBurst", cp.ClientBurst},
	} {
		if n.value < 1 {
			fs.add(n.field, "", "%d: want at least 1", n.value)
		}
	}
}

func image(fs *faults, field, ref string) {
	if !isImage(ref) {
		fs.add(field, "", "%q: want an image reference such as registry.example.com/name:tag", ref)
	}
}

func (c *NodeConfig) validateTimes(fs *faults) {
	t, r := c.Timeouts, c.Restart
	for _, d := range []struct {
		field string
		value Duration
	}{
		{"kubelet.nodeStatusUpdateFrequency", c.Kubelet.NodeStatusUpdateFrequency},
		{"certificates.caLifetime", c.Certificates.CALifetime}, {"certificates.lifetime", c.Certificates.Lifetime},
		{"controlPlane.etcdHeartbeat", c.ControlPlane.EtcdHeartbeat}, {"controlPlane.etcdElection", c.ControlPlane.EtcdElection},
		{"timeouts.ready", t.Ready}, {"timeouts.componentStart", t.ComponentStart},
		{"timeouts.componentStop", t.ComponentStop}, {"timeouts.podStop", t.PodStop},
		{"timeouts.stop", t.Stop}, {"timeouts.health", t.Health},
		{"restart.initial", r.Initial}, {"restart.max", r.Max}, {"restart.resetAfter", r.ResetAfter},
	} {
		if d.value <= 0 {
			fs.add(d.field, "", "%s: want more than nothing", d.value.D())
		}
	}
	notLonger(fs, "certificates.lifetime", c.Certificates.Lifetime, "certificates.caLifetime", c.Certificates.CALifetime)
	if rest := t.Stop - t.ComponentStop; t.PodStop > rest && rest > 0 {
		fs.add("timeouts.podStop", "", "%s: want at most timeouts.stop less timeouts.componentStop, which is %s", t.PodStop.D(), rest.D())
	}
	notLonger(fs, "timeouts.componentStop", t.ComponentStop, "timeouts.stop", t.Stop)
	notLonger(fs, "restart.initial", r.Initial, "restart.max", r.Max)
	if r.GiveUpAfter < 0 {
		fs.add("restart.giveUpAfter", "", "%d: want 0 (never) or more", r.GiveUpAfter)
	}
}

func notLonger(fs *faults, field string, d Duration, than string, limit Duration) {
	if d > limit {
		fs.add(field, "", "%s: want at most %s, which is %s", d.D(), than, limit.D())
	}
}
