package preflight

import (
	"context"
	"errors"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/trial"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// checkCgroup reports the cgroup that pkg/cgroupv2 finds for the node. It is a failure if no cgroup is delegated to the
// account, and a warning if controllers are missing.
func checkCgroup(ctx context.Context, h *host) []Finding {
	tree, d, err := h.probes.Delegation()
	if err != nil {
		f := fail("%v", err)
		if r := errdefs.ReportOf(err); len(r.Steps) > 0 {
			f.fix = fixOf(r.Steps[0])
		}
		var nd *cgroupv2.NotDelegatedError
		if errors.As(err, &nd) {
			f.Details = map[string]string{"cgroup": nd.Self, "owner": nd.Owner}
			if nd.ReadOnly {
				f.fix = fix{}
				f.fix.add(hostinfo.OuterSettings(hostinfo.WritableCgroups(h.container()))...)
			}
		}
		return []Finding{f}
	}
	if fault, ok := h.tried(ctx).fault(trial.StepCgroup); ok {
		return []Finding{fail("the node cannot mount its cgroup over /sys/fs/cgroup: %v", withoutPath(fault))}
	}
	details := map[string]string{
		"mount": tree.Mount, "root": d.Root, "source": d.Source,
		"available": strings.Join(d.Available, " "), "missing": strings.Join(d.Missing, " "),
	}
	if len(d.Missing) == 0 {
		return []Finding{pass("cgroup %s (%s) with %s", rootOrUserManager(d), d.Source, strings.Join(d.Available, " ")).with(details)}
	}
	f := warn("cgroup %s (%s) lacks %s: the node starts, but does not enforce limits that need these controllers", rootOrUserManager(d), d.Source, strings.Join(d.Missing, ", "))
	f.fix = fixOf(d.Hint())
	return []Finding{f.with(details)}
}

func rootOrUserManager(d cgroupv2.Delegation) string {
	if d.Root == "" {
		return "of the user manager"
	}
	return d.Root
}
