package hostsetup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// cgroupStep delegates a cgroup: with a drop-in for user managers under systemd, with a prepared directory elsewhere.
func cgroupStep(p *Plan) (Step, error) {
	if p.env.systemd {
		return delegateStep(p), nil
	}
	e := p.env
	tree, treeErr := cgroupv2.DetectHost(e.Cgroups)
	ids := func() (uid, gid int, err error) {
		a, ok, err := e.account(context.Background())
		if err == nil && !ok {
			err = fmt.Errorf("user %s does not exist", e.User)
		}
		return a.UID, a.GID, err
	}
	s := Step{
		Name: "cgroup", Title: "delegate a cgroup to " + e.User, Why: "the node uses it to distinguish, limit and stop pods and components",
		Needed: func() (bool, error) {
			uid, _, err := ids()
			if treeErr != nil || err != nil {
				return true, treeErr // an account that does not exist yet has no directory
			}
			return !cgroupv2.Prepared(tree, uid), nil
		},
		Do: func(context.Context) error {
			uid, gid, err := ids()
			if err != nil {
				return err
			}
			if tree.ReadOnly {
				return errdefs.Class(errdefs.ErrPreflight, errdefs.WithHint(errors.New("the cgroup2 tree at "+tree.Mount+" is mounted read-only"),
					strings.Join(hostinfo.OuterSettings(hostinfo.WritableCgroups(hostinfo.DetectContainer(e.Root+"/"))), "\n")))
			}
			dir, err := cgroupv2.Prepare(tree, uid, gid)
			if err != nil {
				return err
			}
			p.record.UID = uid
			p.record.add("cgroup", entry{After: map[string]string{"cgroup": dir}})
			return nil
		},
		Undo: func(context.Context) error {
			if treeErr != nil {
				return treeErr
			}
			return cgroupv2.RemovePrepared(tree, p.record.UID)
		},
		Note: errdefs.Hint{{
			Text:   "this lasts until the next reboot: run host setup at each boot. Start nodes with",
			Action: errdefs.Start, As: e.User, Alternative: true,
		}},
	}
	if treeErr == nil && !tree.ReadOnly {
		uid, gid, err := ids()
		s.Commands = prepareCommands(e, tree, uid, gid, err == nil)
	}
	return s, nil
}

// prepareCommands returns the commands of pkg/cgroupv2. For an account that the script itself creates, the shell looks up the
// ids.
func prepareCommands(e *env, tree cgroupv2.Host, uid, gid int, known bool) []string {
	if known {
		return cgroupv2.PrepareCommands(tree, uid, gid)
	}
	const noUID, noGID = 1<<31 - 2, 1<<31 - 3 // placeholders: no host has these ids
	ids := strings.NewReplacer(strconv.Itoa(noUID), "$(id -u "+e.quoted()+")", strconv.Itoa(noGID), "$(id -g "+e.quoted()+")")
	var lines []string
	for _, line := range cgroupv2.PrepareCommands(tree, noUID, noGID) {
		lines = append(lines, ids.Replace(line))
	}
	return lines
}

func delegateStep(p *Plan) Step {
	e := p.env
	const step = "cgroup"
	path, text := cgroupv2.DelegateDropIn()
	text = marker + text
	// Keep a file with this name and other contents. systemd reads rootlessnode.conf after it.
	if e.exists(path) && !e.fileIs(path, text) {
		path = filepath.Join(filepath.Dir(path), "rootlessnode.conf")
	}
	return Step{
		Name: step, Title: "make systemd delegate all cgroup controllers to user managers",
		Why:      "limits of pods for CPU, memory and processes need them; by default systemd delegates only some",
		Commands: append(putCommands(path, text), "systemctl daemon-reload"),
		Needed:   func() (bool, error) { return !delegates(e), nil },
		Do: func(ctx context.Context) error {
			if err := e.putFile(path, text); err != nil {
				return err
			}
			p.record.add(step, entry{Files: map[string]string{path: text}})
			return e.Run(ctx, e.LookPath("systemctl"), "daemon-reload")
		},
		Undo: func(ctx context.Context) error {
			removed, err := p.removeFiles(step)
			if removed {
				err = errors.Join(err, e.Run(ctx, e.LookPath("systemctl"), "daemon-reload"))
			}
			return err
		},
		Note: errdefs.Text("# takes effect at the next login of " + e.User + ", or now with: systemctl restart user@$(id -u " + e.quoted() + ").service"),
	}
}

// marker is the first line of every file that host setup writes.
const marker = "# Written by `rootlessnode host setup`; `rootlessnode host undo` removes it.\n"

// delegates reports whether the drop-ins for user managers delegate every controller that a node uses.
func delegates(e *env) bool {
	var have []string
	for _, dir := range []string{"/usr/lib/systemd/system", "/etc/systemd/system", "/run/systemd/system"} {
		files, _ := filepath.Glob(e.path(dir + "/user@.service.d/*.conf"))
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(b)) {
				v, ok := strings.CutPrefix(strings.TrimSpace(line), "Delegate=")
				switch {
				case !ok:
				case v == "yes" || v == "true" || v == "1" || v == "on":
					return true
				default:
					have = append(have, strings.Fields(v)...)
				}
			}
		}
	}
	for _, c := range cgroupv2.Wanted() {
		if !slices.Contains(have, c) {
			return false
		}
	}
	return true
}
