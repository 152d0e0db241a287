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

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/internal/hostinfo"
)

// accountStep makes the account. It is an ordinary one, with a home on disk for the node's data and a shell for people
// who look after it, and no password.
func accountStep(p *Plan) (Step, error) {
	e := p.env
	if !e.CreateUser && !p.record.has("account") {
		return Step{}, nil
	}
	args := []string{"--create-home", "--shell", e.shell(), e.User}
	return Step{
		Name: "account", Title: "make the account " + e.User, Why: "a node is run by an ordinary user, never by root",
		Commands: []string{"useradd " + strings.Join(args, " ")},
		Needed: func() (bool, error) {
			_, ok, err := e.account(context.Background())
			return !ok, err
		},
		Do: func(ctx context.Context) error {
			program := e.LookPath("useradd")
			if program == "" {
				return errors.New("no program useradd: " + e.distro().InstallCommand([]string{"useradd"}))
			}
			// useradd gives subordinate ids to new accounts where login.defs lets it, so those rows are ours as well.
			before := e.ownRows()
			if err := e.Run(ctx, program, args...); err != nil {
				return err
			}
			p.record.add("account", entry{After: map[string]string{"account": e.User}})
			if after := e.ownRows(); len(after) > len(before) {
				p.record.add("subids", entry{Rows: after})
			}
			return nil
		},
		Undo: func(ctx context.Context) error {
			// The home stays: it may hold data of nodes. userdel refuses while the account has processes.
			return e.Run(ctx, e.LookPath("userdel"), e.User)
		},
	}, nil
}

func (e *env) shell() string {
	if e.exists("/bin/bash") {
		return "/bin/bash"
	}
	return "/bin/sh"
}

func (e *env) ownRows() map[string][]string {
	out := map[string][]string{}
	for _, file := range []string{hostinfo.SubuidFile, hostinfo.SubgidFile} {
		rows, _, _ := hostinfo.ReadSubids(e.Root, file)
		for _, r := range rows {
			if r.Owner == e.User {
				out[file] = append(out[file], r.String())
			}
		}
	}
	return out
}

// missingRows are the rows to add, by file: what brings the account up to the number wanted, in a range that no row of
// either file has.
func (e *env) missingRows() (map[string]string, error) {
	a, ok, err := e.account(context.Background())
	if err != nil {
		return nil, err
	}
	if !ok {
		a = hostinfo.Account{Name: e.User, UID: -1}
	}
	var all []hostinfo.SubidRow
	lack := map[string]int64{}
	for _, file := range []string{hostinfo.SubuidFile, hostinfo.SubgidFile} {
		rows, bad, err := hostinfo.ReadSubids(e.Root, file)
		if err != nil {
			return nil, err
		}
		if len(bad) > 0 {
			return nil, fmt.Errorf("%s: want NAME:START:COUNT", strings.Join(bad, ", "))
		}
		all = append(all, rows...)
		want := e.SubidCount
		for _, r := range rows {
			if r.BelongsTo(a) {
				want -= r.Count
			}
		}
		if want > 0 {
			lack[file] = want
		}
	}
	out := map[string]string{}
	for file, count := range lack {
		start := hostinfo.FreeSubids(all, max(lack[hostinfo.SubuidFile], lack[hostinfo.SubgidFile]))
		if start < 0 {
			return nil, fmt.Errorf("%s: no free range of %d ids is left", file, count)
		}
		out[file] = hostinfo.SubidRow{Owner: e.User, Start: start, Count: count}.String()
	}
	return out, nil
}

func subidStep(p *Plan) (Step, error) {
	e := p.env
	rows, err := e.missingRows()
	if err != nil {
		return Step{}, err
	}
	s := Step{
		Name: "subids", Title: fmt.Sprintf("give %s %d subordinate uids and gids", e.User, e.SubidCount),
		Why: "the users inside pods are these ids on the host (subuid(5), subgid(5))",
		Needed: func() (bool, error) {
			rows, err := e.missingRows()
			return len(rows) > 0, err
		},
		Do: func(context.Context) error {
			rows, err := e.missingRows() // anew: useradd may have given some
			if err != nil {
				return err
			}
			for _, file := range sortedKeys(rows) {
				if err := e.appendRow(file, rows[file]); err != nil {
					return err
				}
				p.record.add("subids", entry{Rows: map[string][]string{file: {rows[file]}}})
			}
			return nil
		},
		Undo: func(context.Context) error {
			var faults []error
			for file, rows := range p.record.Steps["subids"].Rows {
				faults = append(faults, e.removeRows(file, rows))
			}
			return errors.Join(faults...)
		},
	}
	for _, file := range sortedKeys(rows) {
		if e.CreateUser {
			s.Commands = append(s.Commands, fmt.Sprintf("grep -q '^%s:' %s || echo %s >> %s", e.User, file, rows[file], file))
			continue
		}
		s.Commands = append(s.Commands, fmt.Sprintf("echo %s >> %s", rows[file], file))
	}
	return s, nil
}

func (e *env) appendRow(file, row string) error {
	f, err := os.OpenFile(e.path(file), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	text := row + "\n"
	if st, err := f.Stat(); err == nil && st.Size() > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, st.Size()-1); err == nil && last[0] != '\n' {
			text = "\n" + text
		}
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// nodePrograms are those of the host that a node uses; slirp4netns is better than the driver that is built in.
func nodePrograms() []string {
	return []string{"newuidmap", "newgidmap", "ip", "mount", "umount", "iptables", "nft", "conntrack", "slirp4netns"}
}

func packageStep(p *Plan) (Step, error) {
	e := p.env
	var missing []string
	for _, program := range nodePrograms() {
		if e.LookPath(program) == "" {
			missing = append(missing, program)
		}
	}
	s := Step{
		Name: "packages", Title: "install what a node runs", Why: "not found: " + strings.Join(missing, ", "),
		Needed: func() (bool, error) { return len(missing) > 0, nil },
	}
	if len(missing) > 0 {
		s.Commands = []string{e.distro().InstallCommand(missing)}
	}
	return s, nil
}

// tunStep makes the device usable. Without CAP_NET_ADMIN in some network namespace it gives no power, which is why 0666
// is usual (kernel: Documentation/networking/tuntap.rst).
func tunStep(p *Plan) (Step, error) {
	e := p.env
	const dev = hostinfo.TunDevice
	const want = 0o666
	mode := func() (os.FileMode, bool) {
		st, err := os.Stat(e.path(dev))
		if err != nil {
			return 0, false
		}
		return st.Mode().Perm(), true
	}
	s := Step{
		Name: "tun", Title: "let users open " + dev, Why: "the node's network interface is a tap device",
		Needed: func() (bool, error) {
			m, ok := mode()
			return !ok || m&want != want, nil
		},
		Do: func(context.Context) error {
			before, ok := mode()
			if !ok {
				if err := os.MkdirAll(filepath.Dir(e.path(dev)), 0o755); err != nil {
					return err
				}
				if err := unix.Mknod(e.path(dev), unix.S_IFCHR|want, int(unix.Mkdev(10, 200))); err != nil {
					return &os.PathError{Op: "mknod", Path: dev, Err: err}
				}
			}
			if err := os.Chmod(e.path(dev), want); err != nil {
				return err
			}
			was := "absent"
			if ok {
				was = fmt.Sprintf("%04o", before)
			}
			p.record.add("tun", entry{Before: map[string]string{dev: was}, After: map[string]string{dev: "0666"}})
			return nil
		},
		Undo: func(context.Context) error {
			before := p.record.Steps["tun"].Before[dev]
			if p.record.usedByOthers("tun", dev) || !e.exists(dev) {
				return nil
			}
			if before == "absent" {
				return os.Remove(e.path(dev))
			}
			m, err := strconv.ParseUint(before, 8, 9)
			if err != nil {
				return err
			}
			return os.Chmod(e.path(dev), os.FileMode(m))
		},
	}
	if _, ok := mode(); !ok {
		s.Commands = []string{"mkdir -p " + filepath.Dir(dev), "mknod " + dev + " c 10 200"}
	}
	s.Commands = append(s.Commands, "chmod 0666 "+dev)
	if !e.systemd {
		s.Note = "without udev this lasts until the host is started again: run host setup at boot"
	}
	return s, nil
}

// cgroupStep delegates a cgroup: a drop-in for user managers under systemd, a directory elsewhere.
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
		Name: "cgroup", Title: "give " + e.User + " a cgroup", Why: "pods and components are told apart, limited and ended by it",
		Needed: func() (bool, error) {
			uid, _, err := ids()
			if treeErr != nil || err != nil {
				return true, treeErr // without an account yet there is no directory of it
			}
			return !owned(preparedDir(tree, uid), uid), nil
		},
		Do: func(context.Context) error {
			uid, gid, err := ids()
			if err != nil {
				return err
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
		Note: "this lasts until the host is started again: run host setup at boot. Nodes are started by: rootlessnode host enter --user " +
			e.User + " -- up",
	}
	if treeErr == nil {
		uid, gid, err := ids()
		s.Commands = e.prepareCommands(tree, uid, gid, err == nil)
	}
	return s, nil
}

// prepareCommands are those of pkg/cgroupv2; for an account that the script itself makes, the shell looks up the ids.
func (e *env) prepareCommands(tree cgroupv2.Host, uid, gid int, known bool) []string {
	if known {
		return cgroupv2.PrepareCommands(tree, uid, gid)
	}
	const noUID, noGID = 1<<31 - 2, 1<<31 - 3 // no host has such ids, so they mark where ids go
	ids := strings.NewReplacer(strconv.Itoa(noUID), "$(id -u "+e.User+")", strconv.Itoa(noGID), "$(id -g "+e.User+")")
	var lines []string
	for _, line := range cgroupv2.PrepareCommands(tree, noUID, noGID) {
		lines = append(lines, ids.Replace(line))
	}
	return lines
}

// preparedDir is where cgroupv2.Prepare puts the account's directory.
func preparedDir(tree cgroupv2.Host, uid int) string {
	return filepath.Join(tree.Mount, "rootlessnode", "user-"+strconv.Itoa(uid))
}

// owned tells whether the directory and the leaf in it belong to uid, with the file by which processes are moved.
func owned(dir string, uid int) bool {
	for _, path := range []string{dir, filepath.Join(dir, "cgroup.procs"), filepath.Join(dir, "cgroup.subtree_control"), filepath.Join(dir, "enter")} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil || int(st.Uid) != uid {
			return false
		}
	}
	return true
}

func delegateStep(p *Plan) Step {
	e := p.env
	const step = "cgroup"
	path, text := cgroupv2.DelegateDropIn()
	text = marker + text
	// A file of that name that is not ours stays; ours is then read after it.
	if e.exists(path) && !e.fileIs(path, text) {
		path = filepath.Join(filepath.Dir(path), "rootlessnode.conf")
	}
	return Step{
		Name: step, Title: "have systemd delegate all cgroup controllers to user managers",
		Why:      "pods' limits of CPU, memory and processes are enforced by them; by itself systemd gives only some",
		Commands: append(putCommands(path, text), "systemctl daemon-reload"),
		Needed:   func() (bool, error) { return !e.delegates(), nil },
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
		Note: "takes effect at the next login of " + e.User + ", or now with: systemctl restart user@$(id -u " + e.User + ").service",
	}
}

// marker heads every file that we write, for those who find it.
const marker = "# Written by `rootlessnode host setup`; `rootlessnode host undo` removes it.\n"

// delegates tells whether some drop-in for user managers names every controller that a node wants, or all.
func (e *env) delegates() bool {
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

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
