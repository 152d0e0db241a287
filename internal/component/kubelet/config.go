package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/runtime"
)

// The part of KubeletConfiguration (kubelet.config.k8s.io/v1beta1) that is set here. Missing fields keep the kubelet's
// defaults: the check of failCgroupV1 passes because /sys/fs/cgroup inside is always a cgroup2 mount, and
// imageServiceEndpoint defaults to containerRuntimeEndpoint.
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
	// Empty: NeverVerifyPreloadedImages, the kubelet's default.
	ImagePullCredentialsVerificationPolicy string `json:"imagePullCredentialsVerificationPolicy,omitempty"`

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

	MaxPods      int               `json:"maxPods"`
	EvictionHard map[string]string `json:"evictionHard,omitempty"`
	// A node accepts no pods for this time after a shortage is over.
	EvictionPressureTransitionPeriod string `json:"evictionPressureTransitionPeriod"`
	ImageGCHighThresholdPercent      int    `json:"imageGCHighThresholdPercent"`
	ImageGCLowThresholdPercent       int    `json:"imageGCLowThresholdPercent"`
	LocalStorageCapacityIsolation    bool   `json:"localStorageCapacityIsolation"`

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

// gateUserNamespace makes the kubelet ignore errors that occur in a user namespace when it writes kernel settings and
// reads /dev/kmsg. It is on by default from Kubernetes 1.37 on; the older version that a node may use needs it.
const gateUserNamespace = "KubeletInUserNamespace"

// disabled is the value of durations that turns a feature off.
const disabled = "0s"

func configFor(e component.Env) configuration {
	c := configuration{
		TypeMeta: component.TypeMeta{APIVersion: "kubelet.config.k8s.io/v1beta1", Kind: "KubeletConfiguration"},

		ContainerRuntimeEndpoint: runtime.Of(e.Config).Endpoint(),
		PodLogsDir:               layout.InsidePodLogs,
		VolumePluginDir:          layout.InsideVolumePlugins,

		// The systemd driver needs a system bus, which does not exist inside. The runtime reports the same driver over
		// CRI.
		CgroupDriver: "cgroupfs",
		// The root of the cgroup namespace is the node's subtree.
		CgroupRoot: "/", CgroupsPerQOS: true,
		// Turning off swap, setting sysctls and lowering the OOM score need root on the host.
		FailSwapOn: false, ProtectKernelDefaults: false, OOMScoreAdj: 0,
		// There is no logind that could delay a shutdown.
		ShutdownGracePeriod: disabled, ShutdownGracePeriodCriticalPods: disabled,
		LocalStorageCapacityIsolation: e.LocalStorageCapacityIsolation,
		SeccompDefault:                e.SeccompDefault,
	}
	if !e.Config.Joins() {
		c.ImagePullCredentialsVerificationPolicy = neverVerify
	}
	c.serving(e)
	c.user(e)
	return c
}

// neverVerify lets every pod use every image of the node. With the kubelet's default, an image cannot be used any more by the name under
// which it was imported after the same content was pulled under another name: the kubelet records pulls by content, with
// the names of pulls only (MustAttemptImagePull in pkg/kubelet/images/pullmanager). The default protects images that were
// pulled with a Secret against pods of other users; a cluster that a node joins may have such users, the cluster of one account does not.
const neverVerify = "NeverVerify"

func (c *configuration) serving(e component.Env) {
	in, cluster := e.Config.Inside, e.Config.Cluster
	c.Address, c.Port = e.NodeIP, in.KubeletPort
	c.HealthzBindAddress, c.HealthzPort = component.Loopback, in.KubeletHealthzPort
	if e.Config.Joins() {
		// The kubelet requests both certificates from the cluster, where they are approved.
		c.ServerTLSBootstrap, c.RotateCertificates = true, true
	} else {
		c.TLSCertFile, c.TLSPrivateKeyFile = pki.CertFile(serverCert), pki.KeyFile(serverCert)
	}
	c.Authentication = authentication{Webhook: enabled{true}, X509: clientCA{pki.CertFile(pki.ClusterCA)}}
	c.Authorization = authorization{Mode: "Webhook"}
	c.KubeAPIQPS, c.KubeAPIBurst = e.Config.ControlPlane.ClientQPS, e.Config.ControlPlane.ClientBurst
	c.ClusterDomain, c.ClusterDNS = cluster.Domain, []string{cluster.DNSAddress}
	c.ResolvConf = layout.InsideResolvConf
}

// PodCgroup is the parent cgroup of all pods, relative to the root of the node's tree.
const PodCgroup = "/kubepods"

// qosCgroups reports whether the kubelet may create cgroups for pods and QoS classes. If these exist when it starts,
// the kubelet writes cpu.weight and memory.low into those of the classes, and exits if the controllers are missing
// (kubelet 1.37, qos_container_manager_linux.go). It could then not restart while pods run. Without the controllers
// these cgroups have no effect, so all containers are in PodCgroup.
func qosCgroups(e component.Env) bool {
	return !slices.Contains(e.Unenforced, "cpu") && !slices.Contains(e.Unenforced, "memory")
}

// pressureTransition is the time without a shortage after which the kubelet reports no pressure any more. Its default of five minutes
// protects a cluster against a node that changes too often; a cluster with one node needs the node back.
const pressureTransition = 30 * time.Second

// statusReport is how often the kubelet writes an unchanged status. It is the default of Kubernetes, which only applies
// if the update frequency is not set (SetDefaults_KubeletConfiguration in pkg/kubelet/apis/config/v1beta1). Each write
// causes an event for all watches of Nodes, several on every node.
const statusReport = 5 * time.Minute

func (c *configuration) user(e component.Env) {
	k := e.Config.Kubelet
	c.MaxPods = k.MaxPods
	c.EvictionHard = k.EvictionHard
	c.ImageGCHighThresholdPercent, c.ImageGCLowThresholdPercent = k.ImageGCHighThresholdPercent, k.ImageGCLowThresholdPercent
	c.NodeStatusUpdateFrequency = k.NodeStatusUpdateFrequency.D().String()
	c.EvictionPressureTransitionPeriod = pressureTransition.String()
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

// merge merges over into base: objects field by field; other values, including lists, are replaced. A null removes the
// field.
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
