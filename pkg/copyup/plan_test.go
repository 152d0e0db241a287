package copyup

import (
	"fmt"
	"io/fs"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// debian returns a small model of a normal host, with root's leftovers of case E4.
func debian(more ...string) *model {
	return hostModel(append([]string{
		"/etc/passwd", "/etc/hosts", "/etc/mtab -> /proc/mounts", "/etc/os-release -> ../usr/lib/os-release",
		"/etc/resolv.conf -> ../run/systemd/resolve/stub-resolv.conf", "/etc/alternatives/awk -> /usr/bin/mawk",
		"/etc/cni/net.d/10-host.conf", "/etc/containers/policy.json",
		"/usr/lib/os-release", "/usr/bin/mawk", "/usr/share/doc/logs",
		"/run/netns/", "/run/containerd/s/", "/run/xtables.lock", "/run/lock/", "/run/user/1000/bus",
		"/run/systemd/resolve/stub-resolv.conf", "/run/shm -> /dev/shm", "/dev/shm/",
		"/var/run -> /run", "/var/lock -> /run/lock", "/var/tmp/", "/var/lib/dpkg/status", "/var/lib/app -> /var/lib/dpkg",
		"/var/lib/cni/networks/", "/var/log/README -> ../../usr/share/doc/logs", "/var/log/syslog", "/var/log/pods/old",
		"/opt/vendor/tool", "/opt/cni/bin/bridge", "/home/u/data/",
	}, more...)...)
}

func standard() Spec {
	return Spec{
		CopyUp: []string{"/etc", "/run", "/var", "/opt"},
		Real:   DefaultReal(),
		Binds: []Bind{
			{Source: "/home/u/data", Target: "/var/lib/kubelet", Mode: 0o750},
			{Source: "/home/u/data", Target: "/var/log/pods"},
			{Source: "/home/u/data", Target: "/etc/cni/net.d"},
		},
	}
}

// applyPlan plans s on a copied-up m, applies it and checks that a second plan has nothing to add.
func applyPlan(m *model, s Spec) error {
	var sources []*inode
	for _, b := range s.Binds {
		n, _, err := m.resolve(b.Source, true)
		if err != nil {
			return fmt.Errorf("source %s: %w", b.Source, err)
		}
		sources = append(sources, n)
	}
	m.copyUp(s.CopyUp...)
	steps, err := planSteps(s, m)
	if err != nil {
		return err
	}
	for _, step := range steps {
		if err := m.apply(step, sources); err != nil {
			return err
		}
	}
	again, err := planSteps(s, m)
	if err == nil && len(again) > 0 {
		err = fmt.Errorf("second plan is not empty: %v", again)
	}
	return err
}

func TestPlanOnANormalHost(t *testing.T) {
	t.Parallel()
	host, m := debian(), debian()
	spec := standard()
	assert.NilError(t, applyPlan(m, spec))

	for _, d := range spec.Real {
		n := m.lookupPlain(d.Path)
		assert.Assert(t, n != nil && n.mode.IsDir(), "%s is real", d.Path)
	}
	for _, b := range spec.Binds {
		assert.Assert(t, m.lookupPlain(b.Target).mounted, b.Target)
	}
	for _, root := range spec.CopyUp {
		assert.Equal(t, m.lookupPlain(root).mode.Perm(), fs.FileMode(0o755))
	}
	assert.Equal(t, m.lookupPlain("/run/lock").mode, fs.ModeDir|fs.ModeSticky|0o777)
	assert.Assert(t, is.Nil(m.lookupPlain("/run").children["xtables.lock"]))

	// Paths outside the node's directories resolve as before, through every kind of link.
	for _, name := range []string{
		"/etc/passwd", "/etc/os-release", "/etc/alternatives/awk", "/etc/resolv.conf", "/run/user/1000/bus",
		"/var/run/user/1000/bus", "/var/lib/dpkg/status", "/var/lib/app/status", "/var/log/README", "/var/log/syslog",
		"/opt/vendor/tool",
	} {
		assert.Assert(t, sameFile(host, m, name), name)
	}
	assert.Equal(t, m.lookupPlain("/var/log/README").link, "../../usr/share/doc/logs")
	assert.Equal(t, m.lookupPlain("/var/lib/dpkg").link, "../.ro1/lib/dpkg")
	assert.Equal(t, m.lookupPlain("/etc/resolv.conf").link, "../run/systemd/resolve/stub-resolv.conf")
	assert.Equal(t, m.lookupPlain("/var/tmp").link, ".ro1/tmp")
}

// sameFile reports whether name leads to the same file of the host in two models of that host.
func sameFile(host, inside *model, name string) bool {
	a, _, errA := host.resolve(name, true)
	b, _, errB := inside.resolve(name, true)
	return errA == nil && errB == nil && a.mode == b.mode && b.host && len(a.children) == len(b.children)
}

func TestPlanHosts(t *testing.T) {
	t.Parallel()
	run := func(name string) Spec { return Spec{CopyUp: []string{"/run", "/var"}, Real: []Dir{{Path: name}}} }
	tests := []struct {
		name   string
		host   []string
		spec   Spec
		real   []string          // must be real directories
		links  map[string]string // must be links with that text
		absent []string
	}{
		{
			name: "a path through /var/run is made in /run",
			host: []string{"/run/", "/var/run -> /run"}, spec: run("/var/run/crio/x"),
			real: []string{"/run/crio/x"}, links: map[string]string{"/var/run": "/run"},
		},
		{
			name: "a relative link between copied-up directories is followed too",
			host: []string{"/run/", "/var/run -> ../run"}, spec: run("/var/run/crio"),
			real: []string{"/run/crio"}, links: map[string]string{"/var/run": "../run"},
		},
		{
			name: "a link to another disk becomes real, entries through the link",
			host: []string{"/run/", "/data/log/a", "/data/log/b -> a", "/var/log -> /data/log"}, spec: run("/var/log/pods"),
			real:  []string{"/var/log/pods"},
			links: map[string]string{"/var/log/a": "/data/log/a", "/var/log/b": "/data/log/b"},
		},
		{
			name: "a relative link to another disk",
			host: []string{"/run/", "/data/log/a", "/var/log -> ../data/log"}, spec: run("/var/log/pods"),
			real: []string{"/var/log/pods"}, links: map[string]string{"/var/log/a": "../../data/log/a"},
		},
		{
			name: "a dangling link into a copied-up directory",
			host: []string{"/run/", "/var/log -> volatile/log"}, spec: run("/var/log/pods"),
			real: []string{"/var/volatile/log/pods"}, links: map[string]string{"/var/log": "volatile/log"},
		},
		{
			name: "a link in a circle is replaced",
			host: []string{"/run/", "/data/x -> /data/x", "/var/log -> /data/x"}, spec: run("/var/log/pods"),
			real: []string{"/var/log/pods"},
		},
		{
			name: "a file in place of a directory is replaced",
			host: []string{"/run/", "/var/lib"}, spec: run("/var/lib/kubelet"),
			real: []string{"/var/lib/kubelet"},
		},
		{
			name: "two levels of parents, the deeper one in a linked directory",
			host: []string{"/run/", "/var/lib/a/b/c", "/var/lib/a/x", "/var/lib/y", "/data/", "/var/lib/a/up -> ../y"},
			spec: run("/var/lib/a/b"), real: []string{"/var/lib/a/b"},
			links: map[string]string{
				"/var/lib/a/x": "../../.ro1/lib/a/x", "/var/lib/y": "../.ro1/lib/y", "/var/lib/a/up": "../y",
			},
			absent: []string{"/var/lib/a/b/c"},
		},
		{
			name: "no /var/tmp on the host",
			host: []string{"/run/", "/var/lib/"}, spec: run("/var/lib/x"), real: []string{"/var/tmp", "/var/lib/x"},
		},
		{
			name:  "a directory not copied up is not changed",
			host:  []string{"/run/", "/var/lib/", "/srv/a"},
			spec:  Spec{CopyUp: []string{"/run"}, Real: []Dir{{Path: "/srv/a"}, {Path: "/var/lib/x"}}},
			links: map[string]string{}, absent: []string{"/var/lib/x"},
		},
		{
			name:  "a kept path shows in an otherwise empty directory",
			host:  []string{"/run/rootlessnode/u1/lock", "/run/rootlessnode/other"},
			spec:  Spec{CopyUp: []string{"/run"}, Real: DefaultReal(), Keep: []string{"/run/rootlessnode/u1/lock"}},
			real:  []string{"/run/rootlessnode"},
			links: map[string]string{"/run/rootlessnode/u1": "../.ro1/rootlessnode/u1"}, absent: []string{"/run/rootlessnode/other"},
		},
		{
			name:  "a kept directory that is itself real keeps all",
			host:  []string{"/run/rootlessnode/u1/lock", "/run/rootlessnode/other"},
			spec:  Spec{CopyUp: []string{"/run"}, Real: DefaultReal(), Keep: []string{"/run/rootlessnode"}},
			links: map[string]string{"/run/rootlessnode/other": "../.ro1/rootlessnode/other"},
		},
		{
			name: "a home below a directory of the node: the source keeps its name",
			host: []string{"/var/lib/containers/u/data/", "/var/lib/containers/storage/"},
			spec: Spec{
				CopyUp: []string{"/var"}, Real: DefaultReal(),
				Binds: []Bind{{Source: "/var/lib/containers/u/data", Target: "/var/lib/kubelet"}},
			},
			real: []string{"/var/lib/containers"}, absent: []string{"/var/lib/containers/storage"},
			links: map[string]string{"/var/lib/containers/u": "../../.ro1/lib/containers/u"},
		},
		{
			name: "a copied-up directory below another becomes real with its entries",
			host: []string{"/var/lib/dpkg/"}, spec: Spec{CopyUp: []string{"/var", "/var/lib"}},
			real: []string{"/var/lib"}, links: map[string]string{"/var/lib/dpkg": "../.ro1/lib/dpkg"},
		},
		{
			name: "directories and binds in a bind",
			host: []string{"/home/u/a/", "/home/u/b/", "/var/log/pods/old"},
			spec: Spec{
				CopyUp: []string{"/var"}, Real: DefaultReal(),
				Binds: []Bind{{Source: "/home/u/a", Target: "/var/log"}, {Source: "/home/u/b", Target: "/var/log/x/y"}},
			},
			real: []string{"/var/log/pods", "/var/log/containers", "/var/log/x/y"}, absent: []string{"/var/log/pods/old"},
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			m := hostModel(tc.host...)
			spec := tc.spec
			if spec.CopyUp[len(spec.CopyUp)-1] == "/var/lib" { // RootlessKit gets only the outermost directories
				m.copyUp("/var")
				steps, err := planSteps(spec, m)
				assert.NilError(t, err)
				for _, s := range steps {
					assert.NilError(t, m.apply(s, nil))
				}
			} else {
				assert.NilError(t, applyPlan(m, spec))
			}
			for _, name := range tc.real {
				n := m.lookupPlain(name)
				assert.Assert(t, n != nil && n.mode.IsDir(), name)
			}
			for name, text := range tc.links {
				n := m.lookupPlain(name)
				assert.Assert(t, n != nil, name)
				assert.Equal(t, n.link, text, name)
			}
			for _, name := range tc.absent {
				assert.Assert(t, is.Nil(m.lookupPlain(name)), name)
			}
		})
	}
}

func planSteps(s Spec, view View) ([]Step, error) {
	p := newPlanner(s, view)
	if err := p.plan(); err != nil {
		return nil, err
	}
	return p.steps, nil
}
