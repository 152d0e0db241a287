package preflight

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// leastCRIO is the first CRI-O that tells the kubelet its cgroup driver (KEP-4033).
var leastCRIO = minorVersion{1, 28}

// checkRuntime looks for what a runtime needs that is not among the components. Whether an external one answers is seen
// inside alone.
func checkRuntime(ctx context.Context, h *host) []Finding {
	switch h.cfg.CRI.Runtime {
	case config.RuntimeExternal:
		return []Finding{pass("runtime external: the kubelet will wait for %s inside", h.cfg.CRI.Endpoint)}
	case config.RuntimeCRIO:
		return h.crio(ctx)
	}
	return []Finding{pass("runtime containerd is among the components")}
}

// besides finds a program as the node role does: beside the components, then on PATH.
func (h *host) besides(name string) string {
	if h.in.ComponentsDir != "" {
		if p := hostinfo.FindProgram(name, h.in.ComponentsDir); p != "" {
			return p
		}
	}
	return h.lookPath(name)
}

func (h *host) crio(ctx context.Context) []Finding {
	const way = "# or let the node use its own containerd: cri.runtime: containerd"
	var found []Finding
	var missing []string
	for _, p := range []string{"crio", "conmon", "crictl"} {
		if (p != "conmon" || h.cfg.CRIO.Conmon == "") && h.besides(p) == "" {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		found = append(found, fail("runtime crio: neither beside the components nor on PATH: %s", strings.Join(missing, ", ")).hint(
			"# install CRI-O 1.28 or later, conmon and crictl (cri-tools) from your distribution or cri-o.io", way))
	}
	for field, p := range map[string]string{
		"crio.conmon": h.cfg.CRIO.Conmon, "crio.registriesConf": h.cfg.CRIO.RegistriesConf, "crio.signaturePolicy": h.cfg.CRIO.SignaturePolicy,
	} {
		if p == "" {
			continue
		}
		if _, err := os.Stat(h.path(p)); err != nil {
			found = append(found, fail("%s: %s: not there, or not readable", field, p))
		}
	}
	if path := h.besides("crio"); path != "" {
		found = append(found, h.crioVersion(ctx, path)...)
	}
	if len(found) == 0 && h.besides("skopeo") == "" {
		f := warn("runtime crio: no skopeo, so the images beside the components come from their registries instead")
		f.fix.programs = []string{"skopeo"}
		found = append(found, f)
	}
	return orPass(found, "runtime crio: %s", h.besides("crio"))
}

// crioVersion reads `crio --version`, which begins with "crio version 1.34.0".
func (h *host) crioVersion(ctx context.Context, path string) []Finding {
	text, err := h.programVersion(ctx, path)
	if err != nil {
		return []Finding{fail("runtime crio: %s --version: %v", path, err).hint("# install it anew")}
	}
	words := strings.Fields(text)
	if len(words) == 0 {
		return []Finding{warn("runtime crio: %s tells no version", filepath.Base(path))}
	}
	switch v, ok := parseVersion(words[len(words)-1]); {
	case !ok:
		return []Finding{warn("runtime crio: version %q is none", text)}
	case older(v, leastCRIO):
		return []Finding{fail("runtime crio: %s is %s: want 1.28 or later, which tells the kubelet its cgroup driver", path, text).hint(
			"# install CRI-O 1.28 or later")}
	}
	return nil
}
