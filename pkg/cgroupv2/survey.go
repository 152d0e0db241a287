package cgroupv2

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// podsDir is the cgroup of the kubelet for pods. podPrefix is the prefix of the name of a pod's cgroup.
const (
	podsDir   = "kubepods"
	podPrefix = "pod"
)

// Survey is the resource usage of a node, its components and its pods.
type Survey struct {
	// Node is the usage of the whole subtree.
	Node Usage
	// Components is the usage of the leaves of `system`, by name.
	Components map[string]Usage
	// Pods is the usage of the kubelet's pods.
	Pods []PodUsage
}

// PodUsage is the usage of a pod. On a node without cgroups for pods it is the usage of one container, and UID is empty.
type PodUsage struct {
	UID string
	// Containers lists the container IDs of the runtime.
	Containers []string
	Usage      Usage
}

// ReadSurvey reads the usage of the node's subtree at dir. It skips cgroups that are removed meanwhile.
//
// Runs in: either. On the host it needs no privileges, because the files of a cgroup are readable.
func ReadSurvey(dir string) (Survey, error) {
	s := Survey{Components: map[string]Usage{}}
	var err error
	if s.Node, err = readUsage(dir, proc.Host); err != nil {
		return Survey{}, err
	}
	names, err := subdirs(filepath.Join(dir, systemDir))
	if err != nil {
		return Survey{}, fmt.Errorf("read the components' cgroups: %w", err)
	}
	for _, name := range names {
		if u, err := readUsage(filepath.Join(dir, systemDir, name), proc.Host); err == nil {
			s.Components[name] = u
		}
	}
	s.pods(filepath.Join(dir, podsDir))
	slices.SortFunc(s.Pods, func(a, b PodUsage) int {
		return strings.Compare(a.UID+strings.Join(a.Containers, ""), b.UID+strings.Join(b.Containers, ""))
	})
	return s, nil
}

// pods reads dir, which contains cgroups of pods, of QoS classes with pods, or of containers.
func (s *Survey) pods(dir string) {
	names, err := subdirs(dir)
	if err != nil {
		return // no pods yet
	}
	for _, name := range names {
		below := filepath.Join(dir, name)
		if name == "burstable" || name == "besteffort" {
			s.pods(below)
			continue
		}
		u, err := readUsage(below, proc.Host)
		if err != nil {
			continue
		}
		p := PodUsage{Usage: u}
		if uid, ok := strings.CutPrefix(name, podPrefix); ok {
			p.UID = uid
			p.Containers, _ = subdirs(below)
		} else {
			p.Containers = []string{name}
		}
		p.Containers = containerIDs(p.Containers)
		s.Pods = append(s.Pods, p)
	}
}

// containerIDs returns the container IDs in the names of cgroups. CRI-O prefixes them with crio-, and creates another cgroup
// crio-conmon-ID for the container's monitor, which is skipped.
func containerIDs(names []string) []string {
	var ids []string
	for _, name := range names {
		id := strings.TrimPrefix(name, "crio-")
		if !strings.HasPrefix(id, "conmon-") {
			ids = append(ids, id)
		}
	}
	return ids
}
