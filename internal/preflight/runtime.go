package preflight

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// minCRIO is the first CRI-O version that reports its cgroup driver to the kubelet (KEP-4033).
var minCRIO = minorVersion{1, 28}

// checkRuntime checks for the programs and files of a runtime that is not one of the components. Whether an external runtime
// responds can be checked only inside the namespaces.
func checkRuntime(ctx context.Context, h *host) []Finding {
	switch h.cfg.CRI.Runtime {
	case config.RuntimeExternal:
		return []Finding{pass("runtime external: the kubelet will wait for %s inside", h.cfg.CRI.Endpoint)}
	case config.RuntimeCRIO:
		return checkCRIO(ctx, h)
	}
	return []Finding{pass("runtime containerd is one of the components")}
}

// componentProgram returns the path of a program as the node role finds it: in the component directory, then on PATH.
func (h *host) componentProgram(name string) string {
	if h.in.ComponentsDir != "" {
		if p := hostinfo.FindProgram(name, h.in.ComponentsDir); p != "" {
			return p
		}
	}
	return h.lookPath(name)
}

func checkCRIO(ctx context.Context, h *host) []Finding {
	const way = "# or use the containerd of the components: cri.runtime: containerd"
	var found []Finding
	var missing []string
	for _, p := range []string{"crio", "conmon", "crictl"} {
		if (p != "conmon" || h.cfg.CRIO.Conmon == "") && h.componentProgram(p) == "" {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		found = append(found, fail("runtime crio: not found next to the components or on PATH: %s", strings.Join(missing, ", ")).hint(
			"# install CRI-O 1.28 or later, conmon and crictl (cri-tools) from your distribution or cri-o.io", way))
	}
	for field, p := range map[string]string{
		"crio.conmon": h.cfg.CRIO.Conmon, "crio.registriesConf": h.cfg.CRIO.RegistriesConf, "crio.signaturePolicy": h.cfg.CRIO.SignaturePolicy,
	} {
		if p == "" {
			continue
		}
		if _, err := os.Stat(h.path(p)); err != nil {
			found = append(found, fail("%s: %s does not exist or is not readable", field, p))
		}
	}
	if path := h.componentProgram("crio"); path != "" {
		found = append(found, crioVersion(ctx, h, path)...)
	}
	if len(found) == 0 && h.componentProgram("skopeo") == "" {
		f := warn("runtime crio: skopeo not found, so images are pulled from their registries instead of loaded from the component directory")
		f.fix.programs = []string{"skopeo"}
		found = append(found, f)
	}
	return orPass(found, "runtime crio: %s", h.componentProgram("crio"))
}

// crioVersion checks the output of `crio --version`, which begins with "crio version 1.34.0".
func crioVersion(ctx context.Context, h *host, path string) []Finding {
	text, err := programVersion(ctx, h, path)
	if err != nil {
		return []Finding{fail("runtime crio: %s --version: %v", path, err).hint("# reinstall it")}
	}
	words := strings.Fields(text)
	if len(words) == 0 {
		return []Finding{warn("runtime crio: %s --version printed no version", filepath.Base(path))}
	}
	switch v, ok := parseVersion(words[len(words)-1]); {
	case !ok:
		return []Finding{warn("runtime crio: invalid version %q", text)}
	case older(v, minCRIO):
		return []Finding{fail("runtime crio: %s is %s: 1.28 or later is required, because it reports its cgroup driver to the kubelet", path, text).hint(
			"# install CRI-O 1.28 or later")}
	}
	return nil
}
