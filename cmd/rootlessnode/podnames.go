package main

import (
	"context"
	"encoding/json"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/internal/nodeexec"
	"github.com/rootlessnode/rootlessnode/internal/runtime"
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
	text, code, err := output(ctx, n, nodeexec.Request{Argv: []string{criclient.Program, criclient.Containers, runtime.Socket(n.Config())}})
	var list []criclient.Container
	if err != nil || code != 0 || json.Unmarshal([]byte(text), &list) != nil {
		p.skip = skipRounds
		return
	}
	for _, id := range unknown {
		p.known[id] = podName{}
	}
	for _, c := range list {
		p.known[c.ID] = podName{c.Pod, c.Namespace, c.UID}
	}
}
