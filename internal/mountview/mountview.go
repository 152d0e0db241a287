// Package mountview lists the mounts inside a rootless node, with their owners and whether they are visible on the host.
//
// It is pure, except for Host, which reads the caller's mounts. Command prints the mounts inside, and Parse parses its output.
//
// Runs in: parent (Parse, Host). Command is run in the child.
package mountview

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Kind is the kind of owner of a mount.
type Kind string

// Kinds, in the order of the output.
const (
	// KindHost: a mount of the host that is visible inside.
	KindHost Kind = "host"
	// KindNode: created by the node before any pod: its own file systems, copied-up directories, binds of its data.
	KindNode Kind = "node"
	// KindPod: created for pods by the kubelet, its plugins or the runtime, or by a pod.
	KindPod Kind = "pod"
)

var kinds = []Kind{KindHost, KindNode, KindPod}

// Mount is one mount inside.
type Mount struct {
	Path   string `json:"path"`
	FSType string `json:"fsType"`
	Kind   Kind   `json:"kind"`
	// Pod is NAMESPACE/NAME. It is the pod's uid or the container's id if the name is unknown, and empty for mounts that pods
	// share.
	Pod string `json:"pod,omitempty"`
	// What describes the purpose: "volume NAME", "container NAME", "network", "shm", "staged volume of DRIVER (CSI)", or for
	// the node "copy-up", "data".
	What string `json:"what,omitempty"`
	// HostSees: the host has the same file system at the same path. This should only be true for KindHost.
	HostSees bool `json:"hostSees"`
}

// Group is the number of mounts of one owner.
type Group struct {
	Kind   Kind   `json:"kind"`
	Pod    string `json:"pod,omitempty"`
	What   string `json:"what,omitempty"`
	Mounts int    `json:"mounts"`
}

// View contains all mounts inside.
type View struct {
	Groups []Group `json:"groups"`
	// Own is the number of mounts inside that are not the host's, HostSees the number of these that are visible on the host.
	Own      int     `json:"own"`
	HostSees int     `json:"hostSees"`
	Mounts   []Mount `json:"mounts"`
}

// Directories of containerd below its state directory, as of containerd 2.
const (
	tasksDir     = layout.InsideContainerdRun + "/io.containerd.runtime.v2.task/k8s.io"
	sandboxesDir = layout.InsideContainerdRun + "/io.containerd.grpc.v1.cri/sandboxes"
	podsDir      = layout.InsideKubelet + "/pods"
	pluginsDir   = layout.InsideKubelet + "/plugins"
)

// Command returns the command that prints the input of Parse inside: the mounts, an empty line, and for each container its id
// and its OCI configuration, whose annotations contain the name of its pod.
func Command() []string {
	return []string{"/bin/sh", "-c", `cat /proc/self/mountinfo && echo && cd "$1" 2>/dev/null || exit 0
for f in */config.json; do [ ! -e "$f" ] || { printf '%s ' "${f%/*}"; tr -d '\n' <"$f"; echo; }; done`, "sh", tasksDir}
}

// container is the OCI configuration of a container.
type container struct {
	Annotations map[string]string `json:"annotations"`
	Linux       struct {
		Namespaces []struct{ Type, Path string } `json:"namespaces"`
	} `json:"linux"`
}

// Annotations that containerd's CRI writes.
const (
	podName, podNamespace, podUID = "io.kubernetes.cri.sandbox-name", "io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-uid"
	containerName, sandboxID      = "io.kubernetes.cri.container-name", "io.kubernetes.cri.sandbox-id"
)

func (c container) pod() string { return c.Annotations[podNamespace] + "/" + c.Annotations[podName] }

// names are the names of pods and containers, from the configurations of containers.
type names struct {
	pods       map[string]string // by uid, sandbox id, container id and network path
	containers map[string]string // by container id
}

// Parse parses the output of Command and compares the mounts with the host's.
func Parse(text []byte, host []*mountinfo.Info) (*View, error) {
	mounts, rest, ok := bytes.Cut(text, []byte("\n\n"))
	if !ok {
		return nil, errors.New("read the node's mounts: incomplete list")
	}
	inside, err := mountinfo.GetMountsFromReader(bytes.NewReader(mounts), nil)
	if err != nil {
		return nil, fmt.Errorf("read the node's mounts: %w", err)
	}
	n, err := readNames(string(rest))
	if err != nil {
		return nil, err
	}
	onHost := map[place]bool{}
	for _, m := range host {
		onHost[placeOf(m)] = true
	}
	v := &View{Mounts: []Mount{}}
	for _, m := range inside {
		v.add(n.describe(m, onHost[placeOf(m)]))
	}
	v.group()
	return v, nil
}

// Host returns the mounts of the calling process.
func Host() ([]*mountinfo.Info, error) { return mountinfo.GetMounts(nil) }

// place identifies a mount across mount namespaces: the file system and its path.
type place struct {
	major, minor int
	root, point  string
}

func placeOf(m *mountinfo.Info) place { return place{m.Major, m.Minor, m.Root, m.Mountpoint} }

func readNames(text string) (names, error) {
	n := names{map[string]string{}, map[string]string{}}
	for line := range strings.Lines(text) {
		id, spec, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue // the container is being created or removed
		}
		var c container
		if err := json.Unmarshal([]byte(spec), &c); err != nil {
			return n, fmt.Errorf("read the configuration of container %s: %w", id, err)
		}
		if c.Annotations[podName] == "" {
			continue // not a CRI container
		}
		for _, key := range []string{id, c.Annotations[podUID], c.Annotations[sandboxID]} {
			n.pods[key] = c.pod()
		}
		for _, ns := range c.Linux.Namespaces {
			if ns.Type == "network" && ns.Path != "" {
				n.pods[ns.Path] = c.pod()
			}
		}
		n.containers[id] = c.Annotations[containerName]
	}
	return n, nil
}

// pod returns the name of the pod with a uid, id or path, or the last element of key if it is unknown.
func (n names) pod(key string) string { return cmp.Or(n.pods[key], path.Base(key)) }

func (n names) describe(info *mountinfo.Info, onHost bool) Mount {
	m := Mount{Path: info.Mountpoint, FSType: info.FSType, HostSees: onHost}
	if f, ok := below(info.Mountpoint, podsDir); ok {
		m.Kind, m.Pod, m.What = KindPod, n.pod(f[0]), volumeOf(f[1:])
		return m
	}
	if f, ok := below(info.Mountpoint, pluginsDir); ok {
		m.Kind, m.What = KindPod, pluginMount(f)
		return m
	}
	if f, ok := below(info.Mountpoint, tasksDir); ok {
		m.Kind, m.Pod, m.What = KindPod, n.pod(f[0]), "container "+cmp.Or(n.containers[f[0]], "(sandbox)")
		return m
	}
	if f, ok := below(info.Mountpoint, sandboxesDir); ok {
		m.Kind, m.Pod, m.What = KindPod, n.pod(f[0]), path.Base(info.Mountpoint)
		return m
	}
	switch {
	case info.FSType == "nsfs" && strings.HasPrefix(info.Root, "net:"):
		m.Kind, m.Pod, m.What = KindPod, n.pod(info.Mountpoint), "network"
	case onHost:
		m.Kind = KindHost
	default:
		m.Kind, m.What = KindNode, nodeMount(info)
	}
	return m
}

// below returns the path elements of name below dir, and whether it is below dir.
func below(name, dir string) (fields []string, ok bool) {
	rest, ok := strings.CutPrefix(name, dir+"/")
	return strings.Split(rest, "/"), ok
}

// volumeOf describes a mount by the path elements after a pod's uid: volumes/PLUGIN/NAME/… or
// volume-subpaths/NAME/CONTAINER/N.
func volumeOf(f []string) string {
	const plugin, name, subName = 1, 2, 1
	switch {
	case len(f) > name && f[0] == "volumes" && f[plugin] == "kubernetes.io~csi":
		return "volume " + f[name] + " (CSI)"
	case len(f) > name && f[0] == "volumes":
		return "volume " + f[name]
	case len(f) > subName && f[0] == "volume-subpaths":
		return "volume " + f[subName] + " (subPath)"
	}
	return path.Join(f...)
}

// pluginMount describes a mount by the path elements after the directory of the kubelet's plugins: kubernetes.io/csi/DRIVER/…
// is the staging path of a volume, which pods share; DRIVER/… belongs to the driver.
func pluginMount(f []string) string {
	const kind, driver = 1, 2
	switch {
	case len(f) > driver && f[0] == "kubernetes.io" && f[kind] == "csi":
		return "staged volume of " + f[driver] + " (CSI)"
	case f[0] == "kubernetes.io":
		return path.Join(f...)
	}
	return "plugin " + f[0]
}

// nodeMount describes a mount of the node: a copied-up directory, a cover, a bind of its data, or another file system.
func nodeMount(info *mountinfo.Info) string {
	const original = ".ro"
	switch {
	case strings.HasPrefix(path.Base(info.Mountpoint), original):
		return "copy-up"
	case strings.Contains(info.Mountpoint, "/"+original):
		return "cover" // of a path in an original, or of a path kept visible in one
	case strings.HasSuffix(info.Root, layout.NewData("/").Inside()+info.Mountpoint):
		return "data"
	}
	for _, b := range layout.NewData("").Binds() {
		if info.Mountpoint == b.Inside {
			return "data"
		}
	}
	return info.FSType
}

func (v *View) add(m Mount) {
	v.Mounts = append(v.Mounts, m)
	if m.Kind == KindHost {
		return
	}
	v.Own++
	if m.HostSees {
		v.HostSees++
	}
}

// group counts the mounts by owner, sorted by kind and name.
func (v *View) group() {
	count := map[Group]int{}
	for _, m := range v.Mounts {
		count[Group{Kind: m.Kind, Pod: m.Pod, What: m.What}]++
	}
	v.Groups = []Group{}
	for g, n := range count {
		g.Mounts = n
		v.Groups = append(v.Groups, g)
	}
	slices.SortFunc(v.Groups, func(a, b Group) int {
		return cmp.Or(slices.Index(kinds, a.Kind)-slices.Index(kinds, b.Kind), strings.Compare(a.Pod, b.Pod), strings.Compare(a.What, b.What))
	})
}
