package cgroupv2

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// podsDir is the kubelet's cgroup, and podPrefix heads the name of a pod's.
const (
	podsDir   = "kubepods"
	podPrefix = "pod"
)

// Survey is what a node uses, and what of it its parts do.
type Survey struct {
	// Node is the whole subtree.
	Node Usage
	// Components are the leaves of `system` by their names.
	Components map[string]Usage
	// Pods are those of the kubelet.
	Pods []PodUsage
}

// PodUsage is what a pod uses. On a node without cgroups for pods, where containers lie side by side, it is one container,
// and UID is empty.
type PodUsage struct {
	UID string
	// Containers are ids of the runtime.
	Containers []string
	Usage      Usage
}

// ReadSurvey reads the subtree of a node at dir. proc is /proc. Cgroups that go away meanwhile are left out.
//
// Runs in: either.
func ReadSurvey(dir, proc string) (Survey, error) {
	s := Survey{Components: map[string]Usage{}}
	var err error
	if s.Node, err = ReadUsage(dir, proc); err != nil {
		return Survey{}, err
	}
	names, err := subdirs(filepath.Join(dir, systemDir))
	if err != nil {
		return Survey{}, fmt.Errorf("read the components' cgroups: %w", err)
	}
	for _, name := range names {
		if u, err := ReadUsage(filepath.Join(dir, systemDir, name), proc); err == nil {
			s.Components[name] = u
		}
	}
	s.pods(filepath.Join(dir, podsDir), proc)
	slices.SortFunc(s.Pods, func(a, b PodUsage) int {
		return strings.Compare(a.UID+strings.Join(a.Containers, ""), b.UID+strings.Join(b.Containers, ""))
	})
	return s, nil
}

// pods reads dir: pods, classes of pods with pods in them, or containers.
func (s *Survey) pods(dir, proc string) {
	names, err := subdirs(dir)
	if err != nil {
		return // no pods yet
	}
	for _, name := range names {
		below := filepath.Join(dir, name)
		if name == "burstable" || name == "besteffort" {
			s.pods(below, proc)
			continue
		}
		u, err := ReadUsage(below, proc)
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

// containerIDs turns names of containers' cgroups into ids: CRI-O puts crio- before them, and a cgroup of the container's
// monitor, crio-conmon-ID, beside them.
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
