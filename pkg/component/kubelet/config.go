package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/pkg/component"
	"github.com/rootlessnode/rootlessnode/pkg/component/pki"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// The part of KubeletConfiguration (kubelet.config.k8s.io/v1beta1) that is set here. What is absent keeps the kubelet's
// default: failCgroupV1 passes, since /sys/fs/cgroup inside is always a cgroup2 mount, and imageServiceEndpoint is
// containerRuntimeEndpoint.
type configuration struct {
	component.TypeMeta `json:",inline"`

	Address            string         `json:"address"`
	Port               int            `json:"port"`
	HealthzBindAddress string         `json:"healthzBindAddress"`
	HealthzPort        int            `json:"healthzPort"`
	TLSCertFile        string         `json:"tlsCertFile,omitempty"`
	TLSPrivateKeyFile  string         `json:"tlsPrivateKeyFile,omitempty"`
	ServerTLSBootstrap bool           `json:"serverTLSBootstrap,omitempty"`
	RotateCertificates bool           `json:"rotateCertificates,omitempty"`
	Authentication     authentication `json:"authentication"`
	Authorization      authorization  `json:"authorization"`
	KubeAPIQPS         int            `json:"kubeAPIQPS"`
	KubeAPIBurst       int            `json:"kubeAPIBurst"`

	ClusterDomain string   `json:"clusterDomain"`
	ClusterDNS    []string `json:"clusterDNS"`
	ResolvConf    string   `json:"resolvConf"`

	ContainerRuntimeEndpoint string `json:"containerRuntimeEndpoint"`
	PodLogsDir               string `json:"podLogsDir"`
	VolumePluginDir          string `json:"volumePluginDir"`
	SerializeImagePulls      bool   `json:"serializeImagePulls"`

	CgroupDriver           string   `json:"cgroupDriver"`
	CgroupRoot             string   `json:"cgroupRoot"`
	CgroupsPerQOS          bool     `json:"cgroupsPerQOS"`
	EnforceNodeAllocatable []string `json:"enforceNodeAllocatable"`
	FailSwapOn             bool     `json:"failSwapOn"`
	ProtectKernelDefaults  bool     `json:"protectKernelDefaults"`
	OOMScoreAdj            int      `json:"oomScoreAdj"`
	CPUManagerPolicy       string   `json:"cpuManagerPolicy"`

	SystemReserved         map[string]string `json:"systemReserved"`
	PodPidsLimit           int64             `json:"podPidsLimit,omitempty"`
	MemoryThrottlingFactor float64           `json:"memoryThrottlingFactor,omitempty"`

	SeccompDefault bool `json:"seccompDefault,omitempty"`

	MaxPods                       int               `json:"maxPods"`
	EvictionHard                  map[string]string `json:"evictionHard,omitempty"`
	ImageGCHighThresholdPercent   int               `json:"imageGCHighThresholdPercent"`
	ImageGCLowThresholdPercent    int               `json:"imageGCLowThresholdPercent"`
	LocalStorageCapacityIsolation bool              `json:"localStorageCapacityIsolation"`

	NodeStatusUpdateFrequency       string          `json:"nodeStatusUpdateFrequency"`
	NodeStatusReportFrequency       string          `json:"nodeStatusReportFrequency"`
	ShutdownGracePeriod             string          `json:"shutdownGracePeriod"`
	ShutdownGracePeriodCriticalPods string          `json:"shutdownGracePeriodCriticalPods"`
	UserNamespaces                  *userNamespaces `json:"userNamespaces,omitempty"`
	FeatureGates                    map[string]bool `json:"featureGates"`
}

type authentication struct {
	Anonymous enabled  `json:"anonymous"`
	Webhook   enabled  `json:"webhook"`
	X509      clientCA `json:"x509"`
}

type enabled struct {
	Enabled bool `json:"enabled"`
}

type clientCA struct {
	ClientCAFile string `json:"clientCAFile"`
}

type authorization struct {
	Mode string `json:"mode"`
}

type userNamespaces struct {
	IDsPerPod int64 `json:"idsPerPod"`
}

// gateUserNamespace lets the kubelet go on where a user namespace may not write kernel settings, and read no /dev/kmsg.
const gateUserNamespace = "KubeletInUserNamespace"

// none is written for durations that switch something off.
const none = "0s"

func configFor(e component.Env) configuration {
	c := configuration{
		TypeMeta: component.TypeMeta{APIVersion: "kubelet.config.k8s.io/v1beta1", Kind: "KubeletConfiguration"},

		ContainerRuntimeEndpoint: e.Config.RuntimeEndpoint(),
		PodLogsDir:               layout.InsidePodLogs,
		VolumePluginDir:          layout.InsideVolumePlugins,

		// There is no system bus for root inside, so no systemd driver; the runtime says the same over CRI.
		CgroupDriver: "cgroupfs",
		// The root of the cgroup namespace is the node's own subtree.
		CgroupRoot: "/", CgroupsPerQOS: true,
		// The last three of these are zero because they cannot be had: swapoff, sysctls and a lower score are not ours.
		FailSwapOn: false, ProtectKernelDefaults: false, OOMScoreAdj: 0,
		// No logind to ask for a delay of the shutdown.
		ShutdownGracePeriod: none, ShutdownGracePeriodCriticalPods: none,
		LocalStorageCapacityIsolation: e.LocalStorageCapacityIsolation,
		SeccompDefault:                e.SeccompDefault,
	}
	c.serving(e)
	c.user(e)
	return c
}

func (c *configuration) serving(e component.Env) {
	in, cluster := e.Config.Inside, e.Config.Cluster
	c.Address, c.Port = e.NodeIP, in.KubeletPort
	c.HealthzBindAddress, c.HealthzPort = component.Loopback, in.KubeletHealthzPort
	if e.Config.Joins() {
		// Both certificates come from the cluster, by requests of the kubelet that somebody there approves.
		c.ServerTLSBootstrap, c.RotateCertificates = true, true
	} else {
		c.TLSCertFile, c.TLSPrivateKeyFile = pki.CertFile(pki.KubeletServer), pki.KeyFile(pki.KubeletServer)
	}
	c.Authentication = authentication{Webhook: enabled{true}, X509: clientCA{pki.CertFile(pki.ClusterCA)}}
	c.Authorization = authorization{Mode: "Webhook"}
	c.KubeAPIQPS, c.KubeAPIBurst = e.Config.ControlPlane.ClientQPS, e.Config.ControlPlane.ClientBurst
	c.ClusterDomain, c.ClusterDNS = cluster.Domain, []string{cluster.DNSAddress}
	c.ResolvConf = layout.InsideResolvConf
}

// PodCgroup is the cgroup, from the root of the node's tree, that holds all pods.
const PodCgroup = "/kubepods"

// qosCgroups tells whether the kubelet may keep a cgroup for each pod and class of pods. When it starts and finds those
// of the classes it writes cpu.weight and memory.low into them, and ends where the controllers are missing (kubelet
// 1.37, qos_container_manager_linux.go): it would never come back from a restart while pods run. Without the
// controllers these cgroups limit nothing, so containers then lie in PodCgroup side by side.
func qosCgroups(e component.Env) bool {
	return !slices.Contains(e.Unenforced, "cpu") && !slices.Contains(e.Unenforced, "memory")
}

// statusReport is how often the kubelet writes a status that has not changed: Kubernetes' own default, which holds only where
// the update frequency is not set (SetDefaults_KubeletConfiguration in pkg/kubelet/apis/config/v1beta1). Each such write goes
// to everybody who watches Nodes, several on every node.
const statusReport = 5 * time.Minute

func (c *configuration) user(e component.Env) {
	k := e.Config.Kubelet
	c.MaxPods = k.MaxPods
	c.EvictionHard = k.EvictionHard
	c.ImageGCHighThresholdPercent, c.ImageGCLowThresholdPercent = k.ImageGCHighThresholdPercent, k.ImageGCLowThresholdPercent
	c.NodeStatusUpdateFrequency = k.NodeStatusUpdateFrequency.D().String()
	c.NodeStatusReportFrequency = max(k.NodeStatusUpdateFrequency.D(), statusReport).String()
	c.FeatureGates = map[string]bool{gateUserNamespace: true}
	c.resources(e)
	if !qosCgroups(e) {
		c.CgroupsPerQOS, c.CgroupRoot = false, PodCgroup
	}
	maps.Copy(c.FeatureGates, k.FeatureGates)
	if e.IDsPerPod > 0 {
		c.UserNamespaces = &userNamespaces{IDsPerPod: e.IDsPerPod}
	}
}

func renderConfig(e component.Env) ([]byte, error) {
	data, err := json.Marshal(configFor(e))
	if err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	for _, head := range []string{"apiVersion", "kind"} {
		if _, ok := e.Config.Kubelet.ExtraConfig[head]; ok {
			return nil, errors.New("kubelet.extraConfig." + head + ": cannot be changed")
		}
	}
	return yaml.Marshal(merge(fields, e.Config.Kubelet.ExtraConfig))
}

// merge lays over on base: objects field by field, everything else (lists too) whole. A null takes the field away.
func merge(base, over map[string]any) map[string]any {
	out := maps.Clone(base)
	for k, v := range over {
		below, baseIsObject := out[k].(map[string]any)
		above, overIsObject := v.(map[string]any)
		switch {
		case v == nil:
			delete(out, k)
		case baseIsObject && overIsObject:
			out[k] = merge(below, above)
		default:
			out[k] = v
		}
	}
	return out
}
