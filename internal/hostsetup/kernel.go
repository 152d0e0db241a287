package hostsetup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// moduleStep loads the modules for which this kernel has files, now and at each boot. On a host without modprobe or module files
// they are built in or not available.
func moduleStep(p *Plan) (Step, error) {
	e := p.env
	const step = "modules"
	wanted := loadable(e)
	text := marker + strings.Join(wanted, "\n") + "\n"
	s := Step{
		Name: step, Title: "load kernel modules", Why: "a user namespace cannot load them",
		Needed: func() (bool, error) {
			return len(wanted) > 0 && (!e.fileIs(hostinfo.ModulesFile, text) || len(unloaded(e, wanted)) > 0), nil
		},
		Do: func(ctx context.Context) error {
			for _, m := range unloaded(e, wanted) {
				if err := e.Run(ctx, e.LookPath("modprobe"), m); err != nil {
					return fmt.Errorf("modprobe %s: %w", m, err)
				}
			}
			if err := e.putFile(hostinfo.ModulesFile, text); err != nil {
				return err
			}
			p.record.add(step, entry{Files: map[string]string{hostinfo.ModulesFile: text}})
			return nil
		},
		// Do not unload modules: other programs may use them, and they are not loaded at the next boot.
		Undo: func(context.Context) error { _, err := p.removeFiles(step); return err },
	}
	if len(wanted) > 0 {
		s.Commands = append([]string{"modprobe -a " + strings.Join(wanted, " ")}, putCommands(hostinfo.ModulesFile, text)...)
	}
	return s, nil
}

// loadable returns the modules for which the running kernel has a file. Built-in modules need not be loaded.
func loadable(e *env) []string {
	if e.LookPath("modprobe") == "" {
		return nil
	}
	return hostinfo.LoadableModules(e.path("/"))
}

func unloaded(e *env, names []string) []string { return hostinfo.UnloadedModules(e.path("/"), names) }

// sysctl is a kernel setting with a minimum value, or a maximum value if isMax is set.
type sysctl struct {
	key   string
	want  int64
	isMax bool
	// onlyZero is set if only the value 0 is changed, and below if only lower values than this are changed.
	onlyZero bool
	below    int64
}

func (s sysctl) file() string { return "/proc/sys/" + strings.ReplaceAll(s.key, ".", "/") }

func (s sysctl) satisfied(have int64) bool {
	switch {
	case s.onlyZero:
		return have != 0
	case s.below > 0:
		return have >= s.below
	case s.isMax:
		return have <= s.want
	}
	return have >= s.want
}

func (e *env) sysctls() []sysctl {
	list := []sysctl{
		{key: "fs.inotify.max_user_instances", want: hostinfo.InotifyInstances},
		{key: "fs.inotify.max_user_watches", want: hostinfo.InotifyWatches},
		{key: "user.max_user_namespaces", want: hostinfo.UserNamespaces, onlyZero: true},
		{key: "kernel.unprivileged_userns_clone", want: 1, onlyZero: true},
	}
	for _, kind := range hostinfo.NamespaceKinds() {
		if kind != "user" {
			list = append(list, sysctl{key: "user.max_" + kind + "_namespaces", want: hostinfo.Namespaces, below: hostinfo.FewNamespaces})
		}
	}
	if e.PortStart > 0 {
		list = append(list, sysctl{key: "net.ipv4.ip_unprivileged_port_start", want: int64(e.PortStart), isMax: true})
	}
	return list
}

// unsatisfied returns the sysctls to set and their current values. It skips those that this kernel does not have.
func unsatisfied(e *env) (set []sysctl, have map[string]string, err error) {
	have = map[string]string{}
	for _, s := range e.sysctls() {
		b, err := os.ReadFile(e.path(s.file()))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", s.key, err)
		}
		if !s.satisfied(n) {
			set, have[s.key] = append(set, s), strconv.FormatInt(n, 10)
		}
	}
	return set, have, nil
}

// sysctlText returns the text of SysctlFile with the settings in add added or replaced.
func sysctlText(e *env, add []sysctl) string {
	values := map[string]string{}
	b, _ := os.ReadFile(e.path(hostinfo.SysctlFile))
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			values[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	for _, s := range add {
		values[s.key] = strconv.FormatInt(s.want, 10)
	}
	text := marker
	for _, key := range sortedKeys(values) {
		text += key + " = " + values[key] + "\n"
	}
	return text
}

func sysctlStep(p *Plan) (Step, error) {
	e := p.env
	const step = "sysctl"
	set, _, err := unsatisfied(e)
	if err != nil {
		return Step{}, err
	}
	s := Step{
		Name: step, Title: "raise kernel limits", Why: "a node and its pods need more inotify instances; user namespaces must be allowed",
		Needed: func() (bool, error) {
			set, _, err := unsatisfied(e)
			return len(set) > 0, err
		},
		Do: func(context.Context) error {
			set, before, err := unsatisfied(e)
			if err != nil {
				return err
			}
			text, after := sysctlText(e, set), map[string]string{}
			for _, s := range set {
				value := strconv.FormatInt(s.want, 10)
				if err := os.WriteFile(e.path(s.file()), []byte(value), 0o644); err != nil {
					return err
				}
				after[s.key] = value
			}
			if err := e.putFile(hostinfo.SysctlFile, text); err != nil {
				return err
			}
			p.record.add(step, entry{Files: map[string]string{hostinfo.SysctlFile: text}, Before: before, After: after})
			return nil
		},
		Undo: func(context.Context) error { return p.undoSysctls(step) },
	}
	if len(set) > 0 {
		s.Commands = append(putCommands(hostinfo.SysctlFile, sysctlText(e, set)), "sysctl -q -p "+hostinfo.SysctlFile)
	}
	return s, nil
}

func (p *Plan) undoSysctls(step string) error {
	e, did := p.env, p.record.Steps[step]
	shared := p.record.usedByOthers(step, hostinfo.SysctlFile)
	_, err := p.removeFiles(step)
	faults := []error{err}
	for key, after := range did.After {
		if shared || p.record.usedByOthers(step, key) {
			continue
		}
		file := e.path(sysctl{key: key}.file())
		now, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(now)) != after {
			continue // gone, or changed since
		}
		faults = append(faults, os.WriteFile(file, []byte(did.Before[key]), 0o644))
	}
	return errors.Join(faults...)
}

// appArmorStep writes a profile if AppArmor prevents programs without one from creating user namespaces (Ubuntu).
func appArmorStep(p *Plan) (Step, error) {
	e := p.env
	const step = "apparmor"
	b, err := os.ReadFile(e.path(hostinfo.AppArmorSysctl))
	if err != nil || strings.TrimSpace(string(b)) != "1" || e.Exe == "" {
		return Step{}, nil
	}
	path, text, err := hostinfo.AppArmorProfile(e.Exe)
	text = marker + text
	refused := e.exeRefused()
	if err != nil {
		refused = err
	}
	return Step{
		Name: step, Title: "let " + e.Exe + " create user namespaces", Why: "kernel.apparmor_restrict_unprivileged_userns is 1 on this host",
		Commands: append(putCommands(path, text), "apparmor_parser --replace "+hostinfo.Quote(path)),
		Needed:   func() (bool, error) { return !e.fileIs(path, text), nil },
		Refused:  refused,
		Do: func(ctx context.Context) error {
			if err := e.putFile(path, text); err != nil {
				return err
			}
			p.record.add(step, entry{Files: map[string]string{path: text}})
			return e.Run(ctx, e.LookPath("apparmor_parser"), "--replace", e.path(path))
		},
		Undo: func(ctx context.Context) error {
			for path := range p.record.Steps[step].Files { // possibly of another path of the executable
				if !p.record.usedByOthers(step, path) && e.exists(path) {
					_ = e.Run(ctx, e.LookPath("apparmor_parser"), "--remove", e.path(path)) // an error means that it is not loaded
				}
			}
			_, err := p.removeFiles(step)
			return err
		},
	}, nil
}
