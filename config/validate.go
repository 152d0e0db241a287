package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Limits of field values.
const (
	// minMTU is the datagram size that every IPv4 host must accept (RFC 791), minMTUv6 the minimum link MTU of IPv6
	// (RFC 8200), maxMTU the maximum of the length field.
	minMTU, minMTUv6, maxMTU = 576, 1280, 65535
	// maxNameServers is MAXNS of resolv.conf, which the kubelet enforces as well.
	maxNameServers = 3
	// minEtcdQuota is the size of the store of a new cluster, with room to write.
	minEtcdQuota = 64 << 20
)

// Validate checks c, on which Complete should have been called, without reading the host. It returns nil or one error of class
// errdefs.ErrConfig that joins all faults. Each begins with the path of its field and has a hint if the message does not show
// how to fix it.
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

// Permitted values of enumerated fields.
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
		fs.add(field, "", "%q: must be one of %s", value, strings.Join(permitted, ", "))
	}
}

func inRange(fs *faults, field string, value, low, high int) {
	if value < low || value > high {
		fs.add(field, "", "%d: must be between %d and %d", value, low, high)
	}
}

func (c *NodeConfig) validateIdentity(fs *faults) {
	oneOf(fs, "apiVersion", c.APIVersion, APIVersion)
	oneOf(fs, "kind", c.Kind, Kind)
	oneOf(fs, "logLevel", c.LogLevel, logLevels()...)
	if !isDNSLabel(c.Name) || len(c.Name) > maxNameLength {
		fs.add("name", "use --name with a name such as "+DefaultName+" or test-2",
			"%q: must be at most %d lower case letters, digits and hyphens, and begin and end with a letter or digit", c.Name, maxNameLength)
	}
	switch {
	case c.NodeName == "":
		fs.add("nodeName", "nodeName: node1", "missing, and there is no default because the host has no name")
	case !ValidNodeName(c.NodeName):
		fs.add("nodeName", "nodeName: node1    # default: the host's name",
			"%q: must be a DNS name of at most %d lower case letters, digits, hyphens and dots", c.NodeName, maxNodeNameLength)
	}
	for _, k := range sortedKeys(c.NodeLabels) {
		c.validateLabel(fs, k)
	}
	if c.DataDir == "" {
		fs.add("dataDir", "", "missing, and there is no default because neither XDG_DATA_HOME nor a home directory is known")
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
		fs.add(at, "", "invalid label key: must have the form [PREFIX/]NAME, with a DNS name as PREFIX and at most %d letters, digits, '-', '_' or '.' as NAME",
			maxLabelNameLength)
	case strings.HasPrefix(key, "rootlessnode.dev/"):
		fs.add(at, "", "labels of rootlessnode.dev are set by the node only")
	case !kubeletMaySet(key):
		fs.add(at, "use another prefix, or node.kubernetes.io or kubelet.kubernetes.io",
			"the kubelet must not set this label, because its domain is reserved")
	}
	if value != "" && !isLabelName(value) {
		fs.add(at, "", "invalid value %q: must have at most %d letters, digits, '-', '_' or '.', and begin and end with a letter or digit",
			value, maxLabelNameLength)
	}
}

func absolute(fs *faults, field, path string) {
	if !isAbsolute(path) {
		fs.add(field, "", "%q: must be an absolute path without . or .. elements or a trailing slash", path)
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
				fs.add(at, "", "%s and mounts.copyUp[%d] (%s) overlap", d, j, other)
			}
		}
	}
	for _, needed := range []string{"/etc", "/run", "/var"} {
		if !slices.Contains(dirs, needed) {
			fs.add("mounts.copyUp", "copyUp: [/etc, /run, /var, /opt]", "%s is missing, but components store files there", needed)
		}
	}
	oneOf(fs, "mounts.propagation", c.Mounts.Propagation, "rslave", "rprivate")
	oneOf(fs, "subids.source", c.Subids.Source, "auto", "static", "dynamic")
}

// noCopyUp returns the reason why RootlessKit cannot copy up dir, or "".
func noCopyUp(dir string) string {
	for _, kernel := range []string{"/proc", "/sys", "/dev"} {
		if dir == kernel || strings.HasPrefix(dir, kernel+"/") {
			return "it is a file system of the kernel"
		}
	}
	switch dir {
	case "/":
		return "it would replace the whole file system"
	case "/tmp":
		return "RootlessKit uses it itself"
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
		fs.add("controlPlane.etcdSnapshotCount", "", "%d: must be at least 1", cp.EtcdSnapshotCount)
	}
	if cp.EtcdQuotaBytes < minEtcdQuota {
		fs.add("controlPlane.etcdQuotaBytes", "", "%d: must be at least %d bytes", cp.EtcdQuotaBytes, int64(minEtcdQuota))
	}
	c.validateControlPlaneLimits(fs)
	for field, args := range map[string][]string{
		"controlPlane.apiServerExtraArgs":         cp.APIServerExtraArgs,
		"controlPlane.controllerManagerExtraArgs": cp.ControllerManagerExtraArgs,
		"controlPlane.schedulerExtraArgs":         cp.SchedulerExtraArgs,
	} {
		for i, a := range args {
			if !strings.HasPrefix(a, "--") {
				fs.add(fmt.Sprintf("%s[%d]", field, i), "", "%q: must have the form --FLAG=VALUE", a)
			}
		}
	}
}

// minElectionHeartbeats is the minimum election timeout that etcd accepts, in heartbeats.
const minElectionHeartbeats = 5

func (c *NodeConfig) validateControlPlaneLimits(fs *faults) {
	cp := c.ControlPlane
	if cp.EtcdElection < minElectionHeartbeats*cp.EtcdHeartbeat {
		fs.add("controlPlane.etcdElection", "", "%s: must be at least %d times controlPlane.etcdHeartbeat, which is %s",
			cp.EtcdElection.D(), minElectionHeartbeats, cp.EtcdHeartbeat.D())
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
			fs.add(n.field, "", "%d: must be at least 1", n.value)
		}
	}
}

func image(fs *faults, field, ref string) {
	if !isImage(ref) {
		fs.add(field, "", "%q: must be an image reference such as registry.example.com/name:tag", ref)
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
			fs.add(d.field, "", "%s: must be greater than zero", d.value.D())
		}
	}
	notLonger(fs, "certificates.lifetime", c.Certificates.Lifetime, "certificates.caLifetime", c.Certificates.CALifetime)
	if rest := t.Stop - t.ComponentStop; t.PodStop > rest && rest > 0 {
		fs.add("timeouts.podStop", "", "%s: must be at most timeouts.stop minus timeouts.componentStop, which is %s", t.PodStop.D(), rest.D())
	}
	notLonger(fs, "timeouts.componentStop", t.ComponentStop, "timeouts.stop", t.Stop)
	notLonger(fs, "restart.initial", r.Initial, "restart.max", r.Max)
	if r.GiveUpAfter < 0 {
		fs.add("restart.giveUpAfter", "", "%d: must be 0 (never) or greater", r.GiveUpAfter)
	}
}

func notLonger(fs *faults, field string, d Duration, than string, limit Duration) {
	if d > limit {
		fs.add(field, "", "%s: must be at most %s, which is %s", d.D(), than, limit.D())
	}
}
