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
	// texts are those of its file and of its drop-ins but ours, in the order in which systemd reads them.
	texts []string
	// props are what systemd says of it.
	props map[string]string
}

// refused are settings under which a service cannot enter a mount namespace, or would see another root there.
var refused = []string{"RootDirectory", "RootImage", "DynamicUser"}

// ineffective are settings by which systemd gives a service a mount namespace of its own, which it leaves by entering.
var ineffective = []string{
	"BindPaths", "BindReadOnlyPaths", "InaccessiblePaths", "MountAPIVFS", "MountFlags", "PrivateDevices", "PrivateMounts", "PrivateTmp",
	"ProtectControlGroups", "ProtectHome", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "ProtectProc",
	"ProtectSystem", "ReadOnlyPaths", "ReadWritePaths", "TemporaryFileSystem",
}

// off are the values by which systemd says that a setting is not used.
var off = []string{"", "no", "0", "default", "disabled"}

// show asks systemd for what it knows of a unit.
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

// id is the unit's own name, for one that may be an alias.
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
		return nil, errdefs.Class(errdefs.ErrConfig, fmt.Errorf("systemd says that the unit is %s %s", state, props["LoadError"]))
	}
	if !strings.HasSuffix(u.id, ".service") {
		return nil, errdefs.Class(errdefs.ErrConfig, fmt.Errorf("%s is not a service", u.id))
	}
	if props["NeedDaemonReload"] == "yes" {
		return nil, errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, errors.New("its files have changed since systemd read them")), "systemctl daemon-reload")
	}
	return u, u.read(filepath.Join(o.Dir, u.id+".d", FileName))
}

// read reads the unit's files but own, and refuses drop-ins that would have the last word over it.
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
			return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, fmt.Errorf("%s sets ExecStart and comes after %s", path, FileName)),
				"rename it to something that sorts before")
		}
	}
	return nil
}

func sets(text, key string) bool {
	return slices.ContainsFunc(parseUnit(text), func(a assignment) bool { return a.section == "Service" && a.key == key })
}

// check refuses what cannot work, all together, and notes what has no effect any more.
func (u *unit) check() (notes []string, err error) {
	var errs []error
	if user := u.props["User"]; user != "" && user != "root" && user != "0" {
		errs = append(errs, fmt.Errorf("with User=%s: only root may enter a mount namespace", user))
	}
	if r := u.props["RestrictNamespaces"]; !slices.Contains(off, r) && !slices.Contains(strings.Fields(r), "mnt") {
		errs = append(errs, fmt.Errorf("RestrictNamespaces=%s: it forbids to enter a mount namespace", r))
	}
	for _, key := range refused {
		if v := u.props[key]; !slices.Contains(off, v) {
			errs = append(errs, fmt.Errorf("%s=%s: a service with a root of its own does not fit into a shared mount namespace", key, v))
		}
	}
	for _, key := range ineffective {
		if v := u.props[key]; !slices.Contains(off, v) {
			notes = append(notes, fmt.Sprintf("%s: %s=%s has no effect any more: it is of the mount namespace that the service leaves", u.id, key, v))
		}
	}
	return notes, errdefs.Class(errdefs.ErrConfig, errors.Join(errs...))
}
