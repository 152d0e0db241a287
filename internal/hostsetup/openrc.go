package hostsetup

import (
	"context"
	"os"
	"path/filepath"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// bootStep makes OpenRC repeat the setup at each boot, because cgroups, the runtime directory, the device and loaded modules do
// not survive a reboot. OpenRC's service `local` runs the executable files /etc/local.d/*.start at the end of the boot.
func bootStep(p *Plan) (Step, error) {
	e := p.env
	const step, service = "boot", "local"
	if e.systemd || !e.exists(hostinfo.OpenRCBooted) || e.Exe == "" {
		return Step{}, nil
	}
	path := "/etc/local.d/rootlessnode-" + e.User + ".start"
	text := "#!/bin/sh\n" + marker + "exec " + hostinfo.Quote(e.Exe) + " host setup --user " + hostinfo.Quote(e.User) + "\n"
	const mode = 0o755
	enabled := func() bool {
		found, _ := filepath.Glob(e.path("/etc/runlevels/*/" + service))
		return len(found) > 0
	}
	s := Step{
		Name: step, Title: "make OpenRC repeat the setup at each boot", Why: "cgroup, runtime directory, device and modules do not survive a reboot",
		Needed: func() (bool, error) {
			st, err := os.Stat(e.path(path))
			return err != nil || st.Mode().Perm() != mode || !e.fileIs(path, text) || !enabled(), nil
		},
		Do: func(ctx context.Context) error {
			if err := e.putFile(path, text); err != nil {
				return err
			}
			p.record.add(step, entry{Files: map[string]string{path: text}})
			if err := os.Chmod(e.path(path), mode); err != nil || enabled() {
				return err
			}
			return e.Run(ctx, e.LookPath("rc-update"), "add", service, "default")
		},
		// Keep the service in its runlevel, because other scripts may need it now.
		Undo: func(context.Context) error {
			_, err := p.removeFiles(step)
			return err
		},
		Refused:  e.exeRefused(),
		Commands: append(putCommands(path, text), "chmod 0755 "+hostinfo.Quote(path)),
	}
	if !enabled() {
		s.Commands = append(s.Commands, "rc-update add "+service+" default")
	}
	return s, nil
}

// elogindStep enables linger, so that elogind does not remove /run/user/UID when the account's last session ends, and does not
// kill its processes if logind.conf is set to. Without systemd, only elogind does so.
func elogindStep(p *Plan) (Step, error) {
	e := p.env
	if e.systemd || !hostinfo.Elogind(e.Root) {
		return Step{}, nil
	}
	s := lingerStep(p)
	s.Why = "without it elogind removes the account's runtime directory when its last session ends"
	mark := filepath.Join(hostinfo.ElogindLingerDir, hostinfo.LingerFile(e.User))
	s.Needed = func() (bool, error) { return !e.exists(mark), nil }
	return s, nil
}
