package noderole

import (
	"context"
	"errors"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
)

func TestResourceUsage(t *testing.T) {
	t.Parallel()
	value := func(n uint64) *uint64 { return &n }
	usage := func(usec, bytes uint64) cgroupv2.Usage {
		return cgroupv2.Usage{CPUUsec: value(usec), WorkingSetBytes: value(bytes)}
	}
	survey := cgroupv2.Survey{Node: usage(5_500_000, 1<<30), Pods: []cgroupv2.PodUsage{
		{Containers: []string{"c1"}, Usage: usage(250_000, 4096)},
		{Containers: []string{"sandbox"}, Usage: usage(1, 1)},
	}}
	lists, fault := 0, error(nil)
	u := &resourceUsage{
		survey: func() (cgroupv2.Survey, error) { return survey, nil },
		list: func(context.Context) ([]criclient.Container, error) {
			lists++
			return []criclient.Container{{ID: "c1", Name: "main", Pod: "web", Namespace: "default"}, {ID: "sandbox", Pod: "web", Namespace: "default"}}, fault
		},
		now: func() time.Time { return time.UnixMilli(7000) },
	}
	const want = `# HELP node_cpu_usage_seconds_total CPU time of the node.
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 5.5 7000
# HELP node_memory_working_set_bytes Memory of the node.
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 1.073741824e+09 7000
# HELP container_cpu_usage_seconds_total CPU time of the container.
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="main",namespace="default",pod="web"} 0.25 7000
# HELP container_memory_working_set_bytes Memory of the container.
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="main",namespace="default",pod="web"} 4096 7000
`
	for range 2 {
		text, err := u.text(t.Context())
		assert.NilError(t, err)
		assert.Equal(t, string(text), want)
	}
	assert.Equal(t, lists, 1, "the runtime is queried only after new containers have appeared")

	// A container that the runtime does not know is not queried again.
	survey.Pods = append(survey.Pods, cgroupv2.PodUsage{Containers: []string{"ended"}, Usage: usage(1, 1)})
	for range 2 {
		text, err := u.text(t.Context())
		assert.NilError(t, err)
		assert.Equal(t, string(text), want)
	}
	assert.Equal(t, lists, 2)

	survey.Pods = append(survey.Pods, cgroupv2.PodUsage{Containers: []string{"new"}})
	fault = errors.New("the runtime hangs")
	_, err := u.text(t.Context())
	assert.ErrorIs(t, err, fault)
}
