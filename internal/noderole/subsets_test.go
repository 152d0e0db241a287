package noderole

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/internal/specfilter"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
)

// fullConfig returns a config with every setting that needs a cgroup controller.
func fullConfig(t *testing.T) *config.NodeConfig {
	t.Helper()
	cfg := config.Default()
	cfg.Complete(config.HostFacts{Hostname: "node1", XDGDataHome: "/home/u/.local/share"})
	for path, v := range map[string]string{
		"resources.cpu": "2", "resources.memory": "4Gi", "resources.pids": "4096", "resources.podPids": "100", "resources.cpuManager": "static",
		"resources.memoryHighPercent": "90",
	} {
		assert.NilError(t, cfg.Set(path, v))
	}
	assert.NilError(t, cfg.Validate())
	return cfg
}

// delegationOf returns the delegation of a fake cgroup tree with the given controllers.
func delegationOf(t *testing.T, has []string) (cgroupv2.Host, cgroupv2.Delegation) {
	t.Helper()
	mount := t.TempDir()
	for path, controllers := range map[string]string{"/": "cpu cpuset io memory pids", "/a": strings.Join(has, " ")} {
		dir := filepath.Join(mount, path)
		assert.NilError(t, os.MkdirAll(dir, 0o755))
		for file, text := range map[string]string{"cgroup.controllers": controllers, "cgroup.subtree_control": "", "cgroup.procs": "", "cgroup.type": "domain"} {
			assert.NilError(t, os.WriteFile(filepath.Join(dir, file), []byte(text+"\n"), 0o644))
		}
	}
	h := cgroupv2.Host{Mount: mount, Self: "/a"}
	d, err := cgroupv2.Detect(h, cgroupv2.Options{RuntimeDir: filepath.Join(mount, "run"), Booted: filepath.Join(mount, "booted")})
	assert.NilError(t, err)
	assert.DeepEqual(t, slices.Sorted(slices.Values(d.Available)), has)
	return h, d
}

// settingsOf returns the settings of fullConfig that have no effect without the missing controllers.
func settingsOf(missing []string) []string {
	var out []string
	for _, s := range []struct{ setting, controller string }{
		{"resources.cpu", "cpu"}, {"resources.memory", "memory"}, {"resources.pids", "pids"}, {"resources.podPids", "pids"},
		{"resources.cpuManager", "cpuset"}, {"resources.memoryHighPercent", "memory"},
	} {
		if slices.Contains(missing, s.controller) {
			out = append(out, s.setting)
		}
	}
	return out
}

// TestEverySubsetOfControllers checks for each set of delegated controllers that status, Events, label, OCI shim and
// preflight agree, and that the kubelet's configuration only uses what is available.
func TestEverySubsetOfControllers(t *testing.T) {
	t.Parallel()
	all := all5()
	for bits := range 1 << len(all) {
		var has []string
		for i, c := range all {
			if bits&(1<<i) != 0 {
				has = append(has, c)
			}
		}
		t.Run(fmt.Sprintf("%02d %s", bits, strings.Join(has, "+")), func(t *testing.T) {
			t.Parallel()
			checkSubset(t, has)
		})
	}
}

func checkSubset(t *testing.T, has []string) {
	lacks := func(c string) bool { return !slices.Contains(has, c) }
	var missing []string // io is optional
	for _, c := range cgroupv2.Wanted() {
		if lacks(c) {
			missing = append(missing, c)
		}
	}
	cfg := fullConfig(t)
	host, delegation := delegationOf(t, has)
	assert.DeepEqual(t, delegation.Missing, missing)
	settings := settingsOf(missing)

	// The parent's handover: limits without a controller have no file.
	handed := layout.CgroupInfo{Enabled: has, Unenforced: delegation.Missing, Refused: map[string]string{}, Ceiling: cfg.Resources.Limits()}
	for _, c := range []string{"cpu", "memory", "pids"} {
		if lacks(c) {
			handed.Refused[c] = "no such file or directory"
		}
	}
	// The status, its warnings, which the log has too, and the Events.
	assert.DeepEqual(t, unenforcedSettings(cfg, handed), settings)
	texts := unenforcedTexts(cfg, handed)
	assert.Equal(t, len(texts) > 0, len(missing) > 0)
	events := unenforcedEvents(cfg, handed)
	assert.Equal(t, len(events), len(texts))
	for i, text := range texts {
		assert.Equal(t, events[i].Message, text)
		assert.Equal(t, events[i].Object.Kind+"/"+events[i].Object.Name+"/"+events[i].Object.UID, "Node/node1/node1")
		for _, named := range [][]string{missing, settings}[i] {
			assert.Assert(t, strings.Contains(text, named), "%q does not name %s", text, named)
		}
		assert.Assert(t, !strings.Contains(text, "no such file"), "the missing controller is the reason: %q", text)
	}

	// The label.
	env := component.Env{
		Config: cfg, NodeIP: "10.0.2.100", APIServerURL: "https://127.0.0.1:6443", NameServers: []string{"10.0.2.3"},
		BinDir: func(name string) string { return "/c/" + name }, Controllers: has, Unenforced: handed.Unenforced, Ceiling: handed.Ceiling,
		Machine: hostinfo.Machine{CPUs: 4, MemoryBytes: 8 << 30, Tasks: 32768},
	}
	assert.Equal(t, kubelet.Labels(env)[kubelet.LabelUnenforced], strings.Join(missing, "_"))

	// The OCI shim drops exactly the limits of missing controllers, io included.
	drop := specfilter.Missing(has)
	for _, c := range all5() {
		assert.Equal(t, slices.Contains(drop, c), lacks(c), c)
	}
	checkKubelet(t, env, lacks)
	checkFindings(t, cfg, host, delegation, settings)
}

func all5() []string { return []string{"cpu", "cpuset", "io", "memory", "pids"} }

func checkKubelet(t *testing.T, env component.Env, lacks func(string) bool) {
	t.Helper()
	r, err := kubelet.Render(env)
	assert.NilError(t, err)
	var c kubeletv1beta1.KubeletConfiguration
	for _, f := range r.Files {
		if filepath.Base(f.Path) == "kubelet.yaml" {
			assert.NilError(t, yaml.UnmarshalStrict(f.Data, &c))
		}
	}
	qos := !lacks("cpu") && !lacks("memory")
	assert.Equal(t, *c.CgroupsPerQOS, qos)
	assert.Equal(t, c.CgroupRoot, map[bool]string{true: "/", false: kubelet.PodCgroup}[qos])
	want := []string{}
	if qos && !lacks("pids") {
		want = []string{"pods"}
	}
	assert.DeepEqual(t, c.EnforceNodeAllocatable, want)
	assert.Equal(t, c.CPUManagerPolicy, map[bool]string{true: "none", false: "static"}[lacks("cpuset")])
	assert.Equal(t, c.PodPidsLimit == nil, lacks("pids"))
	assert.Equal(t, c.MemoryThrottlingFactor == nil, lacks("memory"))
	// The scheduler respects the caps in any case.
	assert.Equal(t, c.SystemReserved["cpu"], "2250m")
	assert.Equal(t, c.SystemReserved["memory"], fmt.Sprint(5<<30))
	_, pids := c.SystemReserved["pid"]
	assert.Equal(t, pids, !lacks("pids"))
}

func checkFindings(t *testing.T, cfg *config.NodeConfig, host cgroupv2.Host, d cgroupv2.Delegation, settings []string) {
	t.Helper()
	root := t.TempDir()
	for file, text := range map[string]string{"proc/meminfo": "MemTotal: 8388608 kB\n", "sys/devices/system/cpu/online": "0-3\n", "proc/sys/kernel/pid_max": "32768\n"} {
		assert.NilError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755))
		assert.NilError(t, os.WriteFile(filepath.Join(root, file), []byte(text), 0o644))
	}
	findings := preflight.Run(t.Context(), preflight.Input{
		Config: cfg, Root: root, UID: 1000, Data: layout.NewData(filepath.Join(root, "data")), Env: []string{"PATH="},
		Probes: preflight.Probes{
			CloneUserNS: func(context.Context) error { return nil }, InUserNS: func() bool { return false },
			Listen:     func(string, string) error { return nil },
			Delegation: func() (cgroupv2.Host, cgroupv2.Delegation, error) { return host, d, nil },
		},
	})
	found := map[string][]preflight.Finding{}
	for _, f := range findings {
		found[f.Check] = append(found[f.Check], f)
	}
	for check, named := range map[string][]string{"cgroup": d.Missing, "resources": settings} {
		assert.Equal(t, len(found[check]), 1, check)
		f := found[check][0]
		if len(named) == 0 {
			assert.Equal(t, f.Level, preflight.LevelPass, f.Message)
			continue
		}
		assert.Equal(t, f.Level, preflight.LevelWarn, f.Message)
		assert.Assert(t, f.Hint != "", "%s has no hint", check)
		for _, name := range named {
			assert.Assert(t, strings.Contains(f.Message, name), "%q does not name %s", f.Message, name)
		}
	}
}
