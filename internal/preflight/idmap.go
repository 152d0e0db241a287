package preflight

import (
	"context"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/trial"
)

func checkIDMapPrograms(ctx context.Context, h *host) []Finding {
	var found []Finding
	var missing, weak, nosuid []string
	for _, name := range hostinfo.IDMapPrograms() {
		path := h.lookPath(name)
		if path == "" {
			missing = append(missing, name)
			continue
		}
		may, err := h.probes.MayMapIDs(path, name == "newgidmap")
		if err != nil {
			found = append(found, unreadable(err)...)
			continue
		}
		if !may {
			weak = append(weak, path)
		}
		if fs, err := h.probes.Statfs(path); err == nil && fs.Flags&unix.ST_NOSUID != 0 {
			nosuid = append(nosuid, path)
		}
	}
	if len(missing) > 0 {
		f := fail("not found on PATH: %s", strings.Join(missing, ", "))
		f.fix.programs = missing
		found = append(found, f)
	}
	if len(weak) > 0 {
		f := fail("no privilege to map ids: %s: needs set-uid root or a file capability", strings.Join(weak, ", "))
		for _, p := range weak {
			f.fix.add(asRoot("chown root:root " + hostinfo.Quote(p) + " && " + sudoMark + "chmod u+s " + hostinfo.Quote(p)))
		}
		found = append(found, f)
	}
	if len(nosuid) > 0 {
		found = append(found, fail("on a nosuid mount, where programs cannot gain privileges: %s", strings.Join(nosuid, ", ")).hint(
			"# install newuidmap and newgidmap on a file system that is mounted without nosuid, and add their directory to PATH"))
	}
	if h.proc().SelfStatus("NoNewPrivs") == "1" {
		found = append(found, fail("no_new_privs is set for this process: newuidmap and newgidmap cannot gain privileges").hint(
			"# start the node without it: no NoNewPrivileges=yes in the unit,",
			"# no allowPrivilegeEscalation: false in the pod, no --security-opt no-new-privileges in the container"))
	}
	if len(found) == 0 {
		found = tryIDMaps(ctx, h)
	}
	return orPass(found, "newuidmap and newgidmap are installed and privileged")
}

// tryIDMaps returns the failure of one of the programs to map the ids that RootlessKit would request, because their decision and that
// of the kernel depend on more than the files of the host.
func tryIDMaps(ctx context.Context, h *host) []Finding {
	if !h.subidsUsable(ctx) {
		return nil // reported by check subids or account
	}
	if _, _, err := h.probes.IDs(h.cfg.Subids.Source); err != nil {
		return []Finding{fail("cannot determine the ids to map: %v", err)}
	}
	t := h.tried(ctx)
	for _, s := range []struct {
		step    trial.Step
		program string
	}{{trial.StepMapUIDs, "newuidmap"}, {trial.StepMapGIDs, "newgidmap"}} {
		if fault, ok := t.fault(s.step); ok {
			return []Finding{explainIDMap(h, s.program, fault)}
		}
	}
	return nil
}

// explainIDMap returns the finding for a failed id map, with the cause that is specific to containers: a process that writes
// a map needs CAP_SYS_ADMIN in the new namespace. The creator of the namespace has it there, but root has it only if it has
// the capability outside (user_namespaces(7)). A set-uid root program runs as root, unless it was built to switch back to the
// caller. A program with a file capability runs as the creator.
func explainIDMap(h *host, name string, err error) Finding {
	f := fail("%s cannot map the account's ids: %v", name, err)
	if !hostinfo.LacksSysAdmin(h.path("/")) || !strings.Contains(err.Error(), "Operation not permitted") {
		return f
	}
	f.Message += "; it is set-uid root, but root in this container does not have CAP_SYS_ADMIN"
	f.fix.add("# in the container or its image, use file capabilities instead of set-uid root:")
	for _, p := range []struct{ name, capability string }{{"newuidmap", "cap_setuid"}, {"newgidmap", "cap_setgid"}} {
		path := hostinfo.Quote(h.lookPath(p.name))
		f.fix.add(asRoot("setcap "+p.capability+"=ep "+path), asRoot("chmod u-s "+path))
	}
	f.fix.setup = true
	return f
}
