package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Limits of field values.
const (
	// minMTUv6 is the minimum link MTU of IPv6 (RFC 8200).
	minMTUv6 = 1280
	// maxNameServers is MAXNS of resolv.conf, which the kubelet enforces as well.
	maxNameServers = 3
)

// Validate checks c, on which Complete should have been called, without reading the host. It returns nil or one error of class
// errdefs.ErrConfig that joins all faults. Each begins with the path of its field and has a hint if the message does not show
// how to fix it.
func (c *NodeConfig) Validate() error {
	var fs faults
	for _, validate := range []func(*NodeConfig, *faults){
		validateFields, validateIdentity, validateNetwork, validateCluster, validateOverlaps, validateJoin, validatePorts,
		validateMounts, validateResources, validateKubelet, validatePodSecurity, validateControlPlane, validateRuntime,
		validateInside, validateTimes, validateRegistries,
	} {
		validate(c, &fs)
	}
	return errdefs.Class(errdefs.ErrConfig, fs.err())
}

// Permitted values of enumerated fields.
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

// ValidateName validates the name of a node, like Validate.
func ValidateName(name string) error {
	var fs faults
	validateName(name, &fs)
	return errdefs.Class(errdefs.ErrConfig, fs.err())
}

func validateName(name string, fs *faults) {
	if !isDNSLabel(name) || len(name) > maxNameLength {
		fs.add("name", "use --name with a name such as "+DefaultName+" or test-2",
			"%q: must be at most %d lower case letters, digits and hyphens, and begin and end with a letter or digit", name, maxNameLength)
	}
}

func validateIdentity(c *NodeConfig, fs *faults) {
	validateName(c.Name, fs)
	switch {
	case c.NodeName == "":
		fs.add("nodeName", "nodeName: node1", "missing, and there is no default because the host has no name")
	case !ValidNodeName(c.NodeName):
		fs.add("nodeName", "nodeName: node1    # default: the host's name",
			"%q: must be a DNS name of at most %d lower case letters, digits, hyphens and dots", c.NodeName, maxNodeNameLength)
	}
	for _, k := range sortedKeys(c.NodeLabels) {
		validateLabel(c, fs, k)
	}
	if c.DataDir == "" {
		fs.add("dataDir", "", "missing, and there is no default because neither XDG_DATA_HOME nor a home directory is known")
	}
}

func validateLabel(c *NodeConfig, fs *faults, key string) {
	at, value := "nodeLabels."+key, c.NodeLabels[key]
	switch {
	case len(validation.IsQualifiedName(key)) > 0:
		fs.add(at, "", "invalid label key: must have the form [PREFIX/]NAME, with a DNS name as PREFIX and at most %d letters, digits, '-', '_' or '.' as NAME",
			validation.LabelValueMaxLength)
	case strings.HasPrefix(key, "rootlessnode.dev/"):
		fs.add(at, "", "labels of rootlessnode.dev are set by the node only")
	case !kubeletMaySet(key):
		fs.add(at, "use another prefix, or node.kubernetes.io or kubelet.kubernetes.io",
			"the kubelet must not set this label, because its domain is reserved")
	}
	if len(validation.IsValidLabelValue(value)) > 0 {
		fs.add(at, "", "invalid value %q: must have at most %d letters, digits, '-', '_' or '.', and begin and end with a letter or digit",
			value, validation.LabelValueMaxLength)
	}
}

func validateMounts(c *NodeConfig, fs *faults) {
	dirs := c.Mounts.CopyUp
	for i, d := range dirs {
		at := fmt.Sprintf("mounts.copyUp[%d]", i)
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

// minElectionHeartbeats is the minimum election timeout that etcd accepts, in heartbeats.
const minElectionHeartbeats = 5

func validateControlPlane(c *NodeConfig, fs *faults) {
	cp := c.ControlPlane
	if cp.CoreDNS {
		checkValue(fs, "controlPlane.coreDNSImage", reflect.ValueOf(cp.CoreDNSImage), "image", nil)
	}
	if cp.EtcdElection < minElectionHeartbeats*cp.EtcdHeartbeat {
		fs.add("controlPlane.etcdElection", "", "%s: must be at least %d times controlPlane.etcdHeartbeat, which is %s",
			cp.EtcdElection.D(), minElectionHeartbeats, cp.EtcdHeartbeat.D())
	}
}

// minCertificateLifetime leaves running components the time to read a renewed certificate, which can take five minutes
// (internal/component/pki).
const minCertificateLifetime = Duration(10 * time.Minute)

func validateTimes(c *NodeConfig, fs *faults) {
	t, r := c.Timeouts, c.Restart
	if l := c.Certificates.Lifetime; l < minCertificateLifetime {
		fs.add("certificates.lifetime", "", "%s: must be at least %s", l.D(), minCertificateLifetime.D())
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
