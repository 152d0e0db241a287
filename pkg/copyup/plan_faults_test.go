package copyup

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestPlanFaults(t *testing.T) {
	t.Parallel()
	bind := func(targets ...string) (list []Bind) {
		for _, target := range targets {
			list = append(list, Bind{Source: "/home/u/data", Target: target})
		}
		return list
	}
	tests := []struct {
		name string
		spec Spec
		want []string // all of them in one error
	}{
		{"relative and root", Spec{Binds: bind("x"), Real: []Dir{{Path: "/"}, {Path: ""}}}, []string{
			`bind target "x": path is not absolute`, `directory "/": path is the root directory`, `directory "": path is not`,
		}},
		{"NUL", Spec{Real: []Dir{{Path: "/run/a\x00b"}}}, []string{"NUL"}},
		{"outside", Spec{Binds: bind("/srv/x", "/opt/../usr/x")}, []string{
			`"/srv/x": is not below a copied-up directory`, `"/opt/../usr/x": is not below`,
		}},
		{"a root", Spec{Binds: bind("/run")}, []string{"is a copied-up directory itself"}},
		{"the original", Spec{Real: []Dir{{Path: "/run/.ro1/x"}}}, []string{"is in the original of /run"}},
		{"twice", Spec{Binds: bind("/run/x", "/var/run/x")}, []string{"is also the target of bind 0"}},
		{"hidden", Spec{Binds: bind("/var/lib"), Keep: []string{"/var/lib/dpkg"}}, []string{
			`keep "/var/lib/dpkg": would be hidden by the bind over /var/lib`,
		}},
		{"hidden source", Spec{Binds: []Bind{{Source: "/var/lib/cni", Target: "/var/lib"}}}, []string{"would be hidden"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			m := debian()
			m.copyUp("/etc", "/run", "/var", "/opt")
			tc.spec.CopyUp = []string{"/etc", "/run", "/var", "/opt"}
			steps, err := planSteps(tc.spec, m)
			assert.Assert(t, errors.Is(err, errdefs.ErrConfig), "%v", err)
			assert.Equal(t, len(steps), 0)
			for _, want := range tc.want {
				assert.Assert(t, is.Contains(err.Error(), want))
			}
		})
	}
}

func TestPlanNotCopiedUp(t *testing.T) {
	t.Parallel()
	_, err := planSteps(standard(), debian())
	assert.ErrorContains(t, err, "find the original of /etc")
}

func TestPlanUnreadableDirectory(t *testing.T) {
	t.Parallel()
	m := hostModel("/var/lib/private/u/data/", "/var/lib/private/x/y")
	m.copyUp("/var")
	spec := Spec{
		CopyUp: []string{"/var"}, Real: []Dir{{Path: "/var/lib/private/x/z"}}, Keep: []string{"/var/lib/private/u/data"},
	}
	steps, err := planSteps(spec, denied{m, "/var/lib/private"})
	assert.NilError(t, err)
	var text []string
	for _, s := range steps {
		assert.NilError(t, m.apply(s, nil))
		text = append(text, s.String())
	}
	assert.Assert(t, is.Contains(strings.Join(text, "\n"), "link /var/lib/private/u to ../../.ro1/lib/private/u"))
	_, _, err = m.resolve("/var/lib/private/u/data", true)
	assert.NilError(t, err)
}

// denied is a view in which one directory can be searched but not listed.
type denied struct {
	*model
	dir string
}

func (d denied) ReadDir(name string) ([]Entry, error) {
	if name == d.dir || strings.HasSuffix(name, "/.ro1"+strings.TrimPrefix(d.dir, "/var")) {
		return nil, fs.ErrPermission
	}
	return d.model.ReadDir(name)
}

func TestStepString(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]Step{
		"mkdir -rwxr-xr-x /a": {Op: OpMakeDir, Path: "/a", Mode: 0o755},
		"chmod -rwxr-xr-x /a": {Op: OpChmod, Path: "/a", Mode: 0o755},
		"remove /a":           {Op: OpRemove, Path: "/a"},
		"link /a to b":        {Op: OpLink, Path: "/a", Link: "b"},
		"bind 2 over /a":      {Op: OpBind, Path: "/a", Bind: 2},
		"unknown operation 0": {},
	} {
		assert.Assert(t, is.Contains(s.String(), want))
	}
}
