package preflight

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/runtime"
)

// componentProgram returns the path of a program as the node role finds it: in the component directory, then on PATH.
func (h *host) componentProgram(name string) string {
	if h.in.ComponentsDir != "" {
		if p := hostinfo.FindProgram(name, h.in.ComponentsDir); p != "" {
			return p
		}
	}
	return h.lookPath(name)
}

// checkRuntime checks for the programs and files that the runtime needs from the host. Whether an external runtime responds can be
// checked only inside the namespaces.
func checkRuntime(ctx context.Context, h *host) []Finding {
	needs := runtime.Of(h.cfg).HostNeeds()
	name := "runtime " + h.cfg.CRI.Runtime
	found := configuredFiles(h, needs.Files)
	if len(needs.Programs) == 0 {
		return orPass(found, "%s%s", name, needs.Text)
	}
	var missing []string
	for _, p := range needs.Programs {
		if h.componentProgram(p) == "" {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		found = append(found, fail("%s: not found next to the components or on PATH: %s", name, strings.Join(missing, ", ")).hint(
			"# install "+needs.Text, "# or use the containerd of the components: cri.runtime: containerd"))
	}
	if path := h.componentProgram(needs.Programs[0]); path != "" {
		found = append(found, runtimeVersion(ctx, h, name, path, needs)...)
	}
	if len(found) == 0 && h.componentProgram(needs.Importer) == "" {
		f := warn("%s: %s not found, so images are pulled from their registries instead of loaded from the component directory", name, needs.Importer)
		f.fix.programs = []string{needs.Importer}
		found = append(found, f)
	}
	return orPass(found, "%s: %s", name, h.componentProgram(needs.Programs[0]))
}

// configuredFiles returns a failure for each file that does not exist, by the setting that names it.
func configuredFiles(h *host, files map[string]string) (found []Finding) {
	for _, field := range slices.Sorted(maps.Keys(files)) {
		p := files[field]
		if p == "" {
			continue
		}
		if _, err := os.Stat(h.path(p)); err != nil {
			found = append(found, fail("%s: %s does not exist or is not readable", field, p).hint("# create it, or correct "+field))
		}
	}
	return found
}

// runtimeVersion checks the output of `PROGRAM --version`, which begins like "crio version 1.34.0".
func runtimeVersion(ctx context.Context, h *host, name, path string, needs runtime.HostNeeds) []Finding {
	text, err := programVersion(ctx, h, path)
	if err != nil {
		return []Finding{fail("%s: %s --version: %v", name, path, err).hint("# reinstall it")}
	}
	words := strings.Fields(text)
	if len(words) == 0 {
		return []Finding{warn("%s: %s --version printed no version", name, filepath.Base(path))}
	}
	least, _ := parseVersion(needs.Version + ".0")
	switch v, ok := parseVersion(words[len(words)-1]); {
	case !ok:
		return []Finding{warn("%s: invalid version %q", name, text)}
	case older(v, least):
		return []Finding{fail("%s: %s is %s: %s or later is required, because %s", name, path, text, needs.Version, needs.VersionReason).hint(
			"# install " + needs.Text)}
	}
	return nil
}
