package bugreport

import (
	"context"
	"errors"
	"io/fs"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
)

// client returns a client of the node's API server, or nil if the node has no kubeconfig yet.
func client(in *Input) (*kubeapi.Client, error) {
	if in.Node == nil {
		return nil, nil
	}
	c, err := kubeapi.New(in.Node.Kubeconfig(), kubeapi.Options{UserAgent: "rootlessnode-report"})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return c, err
}

// The following types have the fields of objects that are in a report. Specifications, which may have secrets in the environment, the
// arguments and the annotations of pods, are not among them.
type (
	nodeState struct {
		Name       string                 `json:"name"`
		UID        string                 `json:"uid"`
		Created    time.Time              `json:"created"`
		Labels     map[string]string      `json:"labels"`
		Taints     []corev1.Taint         `json:"taints,omitempty"`
		PodCIDRs   []string               `json:"podCIDRs"`
		Addresses  []corev1.NodeAddress   `json:"addresses"`
		Info       corev1.NodeSystemInfo  `json:"info"`
		Capacity   corev1.ResourceList    `json:"capacity"`
		Free       corev1.ResourceList    `json:"allocatable"`
		Conditions []corev1.NodeCondition `json:"conditions"`
	}
	podState struct {
		Namespace  string                   `json:"namespace"`
		Name       string                   `json:"name"`
		UID        string                   `json:"uid"`
		Node       string                   `json:"node"`
		Created    time.Time                `json:"created"`
		Deleted    string                   `json:"deleted,omitempty"`
		Owners     []string                 `json:"owners,omitempty"`
		Host       bool                     `json:"hostNetwork,omitempty"`
		Restart    corev1.RestartPolicy     `json:"restartPolicy"`
		Phase      corev1.PodPhase          `json:"phase"`
		Reason     string                   `json:"reason,omitempty"`
		Message    string                   `json:"message,omitempty"`
		IPs        []corev1.PodIP           `json:"ips,omitempty"`
		QoS        corev1.PodQOSClass       `json:"qosClass"`
		Conditions []corev1.PodCondition    `json:"conditions"`
		Init       []corev1.ContainerStatus `json:"initContainers,omitempty"`
		Containers []corev1.ContainerStatus `json:"containers,omitempty"`
	}
	serviceState struct {
		Namespace  string               `json:"namespace"`
		Name       string               `json:"name"`
		Type       corev1.ServiceType   `json:"type"`
		ClusterIPs []string             `json:"clusterIPs"`
		Ports      []corev1.ServicePort `json:"ports"`
		Status     corev1.ServiceStatus `json:"status"`
	}
	eventState struct {
		Namespace string    `json:"namespace"`
		Object    string    `json:"object"`
		Type      string    `json:"type"`
		Reason    string    `json:"reason"`
		Message   string    `json:"message"`
		Count     int32     `json:"count"`
		Last      time.Time `json:"last"`
	}
)

// cluster describes the nodes, pods, Services and Events of the cluster, if its API server responds.
func cluster(ctx context.Context, in *Input) ([]file, error) {
	c, err := client(in)
	if c == nil {
		return nil, err
	}
	defer c.Close()
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return nil, err // without the API server, the others fail too
	}
	pods, perr := c.ListPods(ctx)
	services, serr := c.ListServices(ctx)
	events, eerr := c.ListEvents(ctx)
	return []file{
		{"cluster/nodes.json", jsonText(mapped(nodes, nodeOf))}, {"cluster/pods.json", jsonText(mapped(pods, podOf))},
		{"cluster/services.json", jsonText(mapped(services, serviceOf))}, {"cluster/events.json", jsonText(mapped(events, eventOf))},
	}, errors.Join(perr, serr, eerr)
}

func mapped[From, To any](all []From, f func(*From) To) []To {
	out := make([]To, len(all))
	for i := range all {
		out[i] = f(&all[i])
	}
	return out
}

func nodeOf(n *corev1.Node) nodeState {
	return nodeState{
		Name: n.Name, UID: string(n.UID), Created: n.CreationTimestamp.Time, Labels: n.Labels, Taints: n.Spec.Taints, PodCIDRs: n.Spec.PodCIDRs,
		Addresses: n.Status.Addresses, Info: n.Status.NodeInfo, Capacity: n.Status.Capacity, Free: n.Status.Allocatable, Conditions: n.Status.Conditions,
	}
}

func podOf(p *corev1.Pod) podState {
	s := podState{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName, Created: p.CreationTimestamp.Time, Host: p.Spec.HostNetwork,
		Restart: p.Spec.RestartPolicy, Phase: p.Status.Phase, Reason: p.Status.Reason, Message: p.Status.Message, IPs: p.Status.PodIPs,
		QoS: p.Status.QOSClass, Conditions: p.Status.Conditions, Init: p.Status.InitContainerStatuses, Containers: p.Status.ContainerStatuses,
	}
	if p.DeletionTimestamp != nil {
		s.Deleted = p.DeletionTimestamp.UTC().Format(time.RFC3339)
	}
	for _, o := range p.OwnerReferences {
		s.Owners = append(s.Owners, o.Kind+"/"+o.Name)
	}
	return s
}

func serviceOf(s *corev1.Service) serviceState {
	return serviceState{s.Namespace, s.Name, s.Spec.Type, s.Spec.ClusterIPs, s.Spec.Ports, s.Status}
}

func eventOf(e *corev1.Event) eventState {
	return eventState{
		e.Namespace, e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name, e.Type, e.Reason, e.Message, e.Count, e.LastTimestamp.Time,
	}
}
