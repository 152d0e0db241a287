package main

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
)

// podName is whose a container is.
type podName struct {
	Name, Namespace, UID string
}

// podNames remembers them by the containers' ids.
type podNames struct {
	known map[string]podName
	// failed: the runtime does not answer, and is not asked in each round.
	failed int
}

// patience is for how many rounds a runtime that did not answer is left alone.
const patience = 5

// learn asks the node's runtime for the pods of containers that are new. It needs no API server. Containers that the runtime
// does not know (they are gone) are remembered as nobody's.
func (p *podNames) learn(ctx context.Context, n handle, pods []cgroupv2.PodUsage) {
	var unknown []string
	for _, pod := range pods {
		for _, id := range pod.Containers {
			if _, ok := p.known[id]; !ok {
				unknown = append(unknown, id)
			}
		}
	}
	if len(unknown) == 0 {
		return
	}
	if p.failed > 0 {
		p.failed--
		return
	}
	// One program for all of them; each starts in some 20 ms.
	const script = `for id do ctr --namespace k8s.io containers info "$id" 2>/dev/null; done; true`
	argv, parse := append([]string{"sh", "-c", script, "sh"}, unknown...), parseContainers
	if n.Config().CRI.Runtime != config.RuntimeContainerd {
		// crictl, which the host provides, tells of all containers and sandboxes at once.
		argv, parse = []string{"sh", "-c", "crictl ps -a -o json && crictl pods -o json"}, parseCRI
	}
	text, code, err := output(ctx, n, argv, nil)
	if err != nil || code != 0 {
		p.failed = patience
		return
	}
	for _, id := range unknown {
		p.known[id] = podName{}
	}
	for id, name := range parse(text) {
		p.known[id] = name
	}
}

// parseCRI reads the lists of crictl: containers, and sandboxes as items.
func parseCRI(text string) map[string]podName {
	out := map[string]podName{}
	type entry struct {
		ID     string            `json:"id"`
		Labels map[string]string `json:"labels"`
	}
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var list struct {
			Containers []entry `json:"containers"`
			Items      []entry `json:"items"`
		}
		if d.Decode(&list) != nil {
			return out // the end, or what is no document
		}
		for _, e := range append(list.Containers, list.Items...) {
			out[e.ID] = nameOf(e.Labels)
		}
	}
}

// nameOf reads the kubelet's labels, which sandboxes and containers have alike.
func nameOf(labels map[string]string) podName {
	const prefix = "io.kubernetes.pod."
	return podName{labels[prefix+"name"], labels[prefix+"namespace"], labels[prefix+"uid"]}
}

// parseContainers reads the documents of `ctr containers info`.
func parseContainers(text string) map[string]podName {
	out := map[string]podName{}
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var c struct {
			ID     string
			Labels map[string]string
		}
		if d.Decode(&c) != nil {
			return out // the end, or what is no document
		}
		out[c.ID] = nameOf(c.Labels)
	}
}
