package preflight

import (
	"context"
	"errors"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// checkCgroup asks pkg/cgroupv2 and words its answer. No cgroup of our own is a failure; a controller that is missing
// degrades the node.
func checkCgroup(_ context.Context, h *host) []Finding {
	tree, d, err := h.probes.Delegation()
	if err != nil {
		f := fail("%v", err)
		if r := errdefs.ReportOf(err); len(r.Hints) > 0 {
			f.fix = h.fixFromText(r.Hints[0])
		}
		var nd *cgroupv2.NotDelegatedError
		if errors.As(err, &nd) {
			f.Details = map[string]string{"cgroup": nd.Self, "owner": nd.Owner}
			if nd.ReadOnly {
				f.fix = fix{lines: hostinfo.OuterSettings(hostinfo.WritableCgroups(h.container()))}
			}
		}
		return []Finding{f}
	}
	details := map[string]string{
		"mount": tree.Mount, "root": d.Root, "source": d.Source,
		"available": strings.Join(d.Available, " "), "missing": strings.Join(d.Missing, " "),
	}
	if len(d.Missing) == 0 {
		return []Finding{pass("cgroup %s (%s) with %s", orScope(d), d.Source, strings.Join(d.Available, " ")).with(details)}
	}
	f := warn("cgroup %s (%s) lacks %s: the node starts, and limits by these are not enforced", orScope(d), d.Source, strings.Join(d.Missing, ", "))
	f.fix = h.fixFromText(d.Hint())
	return []Finding{f.with(details)}
}

func orScope(d cgroupv2.Delegation) string {
	if d.Root == "" {
		return "of the user manager"
	}
	return d.Root
}
