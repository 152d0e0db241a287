package main

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
)

// podName identifies the pod of a container.
type podName struct {
	Name, Namespace, UID string
}

// podNames caches the pods of containers by container id.
type podNames struct {
	known map[string]podName
	// skip is the number of rounds for which the runtime is not asked, because it did not answer.
	skip int
}

// skipRounds is the number of rounds to skip after the runtime did not answer.
const skipRounds = 5

// learn queries the node's runtime for the pods of new containers. It does not need the API server. Containers that the runtime
// does not know, because they are gone, are cached without a pod.
func (p *podNames) learn(ctx context.Context, n imageNode, pods []cgroupv2.PodUsage) {
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
	if p.skip > 0 {
		p.skip--
		return
	}
	// One script for all containers, because each program inside takes about 20 ms to start.
	const script = `for id do ctr --namespace k8s.io containers info "$id" 2>/dev/null; done; true`
	argv, parse := append([]string{"sh", "-c", script, "sh"}, unknown...), parseContainers
	if n.Config().CRI.Runtime != config.RuntimeContainerd {
		// crictl, which the host provides, lists all containers and sandboxes at once.
		argv, parse = []string{"sh", "-c", "crictl ps -a -o json && crictl pods -o json"}, parseCRI
	}
	text, code, err := output(ctx, n, argv, nil)
	if err != nil || code != 0 {
		p.skip = skipRounds
		return
	}
	for _, id := range unknown {
		p.known[id] = podName{}
	}
	for id, name := range parse(text) {
		p.known[id] = name
	}
}

// parseCRI parses the output of crictl: a list of containers and a list of sandboxes ("items").
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
			return out // the end, or not JSON
		}
		for _, e := range append(list.Containers, list.Items...) {
			out[e.ID] = nameOf(e.Labels)
		}
	}
}

// nameOf reads the kubelet's labels, which sandboxes and containers both have.
func nameOf(labels map[string]string) podName {
	const prefix = "io.kubernetes.pod."
	return podName{labels[prefix+"name"], labels[prefix+"namespace"], labels[prefix+"uid"]}
}

// parseContainers parses the documents of `ctr containers info`.
func parseContainers(text string) map[string]podName {
	out := map[string]podName{}
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var c struct {
			ID     string
			Labels map[string]string
		}
		if d.Decode(&c) != nil {
			return out // the end, or not JSON
		}
		out[c.ID] = nameOf(c.Labels)
	}
}
