package preflight

import (
	"strings"
	"testing"

	"gotest.tools/v3/assert"
)

func TestRuntimeOfTheNode(t *testing.T) {
	t.Parallel()
	f := goodHost(t)
	assert.Equal(t, f.anonymous(f.run("runtime")), "pass: runtime containerd is one of the components\n")
	f.in.Config.CRI.Runtime, f.in.Config.CRI.Endpoint = "external", "unix:///run/x.sock"
	assert.Equal(t, f.anonymous(f.run("runtime")), "pass: runtime external: the kubelet will wait for unix:///run/x.sock inside\n")
}

func TestRuntimeCRIO(t *testing.T) {
	t.Parallel()
	f := goodHost(t)
	f.in.Config.CRI.Runtime = "crio"
	said := f.anonymous(f.run("runtime"))
	assert.Assert(t, strings.HasPrefix(said, "fail: runtime crio: not found next to the components or on PATH: crio, conmon, crictl\n"), said)

	for _, p := range []string{"conmon", "crictl", "skopeo"} {
		f.program(p, "answers")
	}
	f.program("crio", "answers")
	said = f.anonymous(f.run("runtime"))
	assert.Assert(t, strings.HasPrefix(said, "fail: runtime crio: /ROOT/bin/crio is crio version 1.2.3: 1.28 or later is required"), said)

	f.program("crio", "crio")
	assert.Equal(t, f.anonymous(f.run("runtime")), "pass: runtime crio: /ROOT/bin/crio\n")

	f.remove("bin/skopeo")
	said = f.anonymous(f.run("runtime"))
	assert.Assert(t, strings.HasPrefix(said, "warn: runtime crio: skopeo not found"), said)

	f.remove("bin/conmon")
	f.in.Config.CRIO.Conmon = "/opt/conmon"
	said = f.anonymous(f.run("runtime"))
	assert.Equal(t, said, "fail: crio.conmon: /opt/conmon does not exist or is not readable\n  # create it, or correct crio.conmon\n")
	f.in.Config.CRIO.RegistriesConf = "/opt/registries.conf"
	for range 20 { // the order of a map changes
		assert.Equal(t, f.run("runtime"), said+"fail: crio.registriesConf: /opt/registries.conf does not exist or is not readable\n  # create it, or correct crio.registriesConf\n")
	}
	f.write("opt/conmon", "")
	f.write("opt/registries.conf", "")
	assert.Assert(t, strings.HasPrefix(f.run("runtime"), "warn: "))
}

// TestCRIONeedsNoContainerd checks that a CRI-O node does not require containerd, and that a containerd node does.
func TestCRIONeedsNoContainerd(t *testing.T) {
	t.Parallel()
	f := goodHost(t)
	with := strings.Join(required(f.in.Config), " ")
	assert.Assert(t, strings.Contains(with, "containerd-shim-runc-v2"))
	f.in.Config.CRI.Runtime = "crio"
	without := strings.Join(required(f.in.Config), " ")
	assert.Assert(t, !strings.Contains(without, "containerd") && strings.Contains(without, "runc"))
}
