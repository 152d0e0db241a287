package dropin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// unit is a service as systemd has loaded it.
type unit struct {
	id string
	// texts are the contents of its file and of its drop-ins, without those of this package, in systemd's order.
	texts []string
	// props are its properties from systemctl show.
	props map[string]string
}

// refused lists settings with which a service cannot enter a mount namespace, or would have another root there.
var refused = []string{"RootDirectory", "RootImage", "DynamicUser"}

// ineffective lists settings for which systemd creates a mount namespace of the service. The service leaves that namespace
// when it enters the shared one.
var ineffective = []string{
	"BindPaths", "BindReadOnlyPaths", "InaccessiblePaths", "MountAPIVFS", "MountFlags", "PrivateDevices", "PrivateMounts", "PrivateTmp",
	"ProtectControlGroups", "ProtectHome", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "ProtectProc",
	"ProtectSystem", "ReadOnlyPaths", "ReadWritePaths", "TemporaryFileSystem",
}

// off are the values of settings that are not used.
var off = []string{"", "no", "0", "default", "disabled"}

// show returns properties of a unit from systemctl show.
func (o Options) show(ctx context.Context, name string) (map[string]string, error) {
	if !strings.Contains(name, ".") {
		name += ".service"
	}
	keys := append([]string{"Id", "LoadState", "LoadError", "FragmentPath", "DropInPaths", "NeedDaemonReload", "IgnoreSIGPIPE", "User", "RestrictNamespaces"}, refused...)
	out, err := o.Systemctl(ctx, "show", "--property="+strings.Join(append(keys, ineffective...), ","), "--", name)
	if err != nil {
		return nil, err
	}
	props := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if k, v, ok := strings.Cut(strings.TrimRight(line, "\n"), "="); ok {
			props[k] = v
		}
	}
	return props, nil
}

// id returns the primary name of a unit, for a name that may be an alias.
func (o Options) id(ctx context.Context, name string) (string, error) {
	props, err := o.show(ctx, name)
	return props["Id"], err
}

func (o Options) load(ctx context.Context, name string) (*unit, error) {
	props, err := o.show(ctx, name)
	if err != nil {
		return nil, err
	}
	u := &unit{id: props["Id"], props: props}
	if state := props["LoadState"]; state != "loaded" {
		return nil, errdefs.Config("systemd reports the unit as %s %s", state, props["LoadError"])
	}
	if !strings.HasSuffix(u.id, ".service") {
		return nil, errdefs.Config("%s is not a service", u.id)
	}
	if props["NeedDaemonReload"] == "yes" {
		return nil, errdefs.Preflight("its files have changed since systemd read them").Hint("systemctl daemon-reload")
	}
	return u, u.read(filepath.Join(o.Dir, u.id+".d", FileName))
}

// read reads the files of the unit except own. It returns an error if a drop-in that sorts after own overrides it.
func (u *unit) read(own string) error {
	paths := append([]string{u.props["FragmentPath"]}, strings.Fields(u.props["DropInPaths"])...)
	for i, path := range paths {
		if path == own || path == "" {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return errdefs.Class(errdefs.ErrPreflight, err)
		}
		u.texts = append(u.texts, string(text))
		if i > 0 && filepath.Base(path) > FileName && sets(string(text), "ExecStart") {
			return errdefs.Config("%s sets ExecStart and sorts after %s", path, FileName).
				Hint("rename it so that it sorts before " + FileName)
		}
	}
	return nil
}

func sets(text, key string) bool {
	return slices.ContainsFunc(parseUnit(text), func(a assignment) bool { return a.section == "Service" && a.key == key })
}

// check returns a joined error for all settings that cannot work, and notes for those that have no effect.
func (u *unit) check() (notes []string, err error) {
	var errs []error
	if user := u.props["User"]; user != "" && user != "root" && user != "0" {
		errs = append(errs, fmt.Errorf("setting User=%s: only root can enter a mount namespace", user))
	}
	if r := u.props["RestrictNamespaces"]; !slices.Contains(off, r) && !slices.Contains(strings.Fields(r), "mnt") {
		errs = append(errs, fmt.Errorf("RestrictNamespaces=%s: the service may not enter a mount namespace", r))
	}
	for _, key := range refused {
		if v := u.props[key]; !slices.Contains(off, v) {
			errs = append(errs, fmt.Errorf("%s=%s: a service with this setting cannot run in a shared mount namespace", key, v))
		}
	}
	for _, key := range ineffective {
		if v := u.props[key]; !slices.Contains(off, v) {
			notes = append(notes, fmt.Sprintf("%s: %s=%s has no effect, because the service leaves the mount namespace that it applies to", u.id, key, v))
		}
	}
	return notes, errdefs.Class(errdefs.ErrConfig, errors.Join(errs...))
}
