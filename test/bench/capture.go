package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/resources"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// setup has the input of the bare script: the command lines, files and certificates of a running node. So both sides start the same
// programs with the same configuration, in every commit.
type setup struct {
	dir      string
	cfg      config.NodeConfig
	handover layout.HandoverInfo
}

// capture reads a running node from the host: its processes through /proc, its files through /proc/PID/root.
func capture(s *status.Status, dir string) (*setup, error) {
	c := &setup{dir: dir}
	rt := layout.Runtime{Dir: s.RuntimeDir}
	root := filepath.Join("/proc", strconv.Itoa(s.ChildPID), "root")
	if err := errors.Join(layout.ReadJSON(rt.Config(), &c.cfg), layout.ReadJSON(rt.Handover(), &c.handover)); err != nil {
		return nil, err
	}
	for _, sub := range []string{"cmd", "env"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, err
		}
	}
	for _, component := range s.Components {
		if component.PID == 0 {
			continue
		}
		if err := c.command(s.Cgroup.Path, component); err != nil {
			return nil, err
		}
	}
	manifests, err := resources.Manifests(component.Env{Config: &c.cfg})
	if err != nil {
		return nil, err
	}
	return c, errors.Join(
		copyDir(filepath.Join(root, layout.InsideRun), filepath.Join(dir, "run")),
		copyDir(filepath.Join(root, layout.InsideKubernetes), filepath.Join(dir, "kubernetes")),
		copyFile(filepath.Join(root, layout.InsideCNIConfFile), filepath.Join(dir, "cni.conflist")),
		os.WriteFile(filepath.Join(dir, "addons.yaml"), manifests, 0o600),
		os.WriteFile(filepath.Join(dir, "settings"), c.settings(s), 0o600),
	)
}

// command saves the command line and the environment of a component, one entry per line.
func (c *setup) command(cgroup string, comp status.Component) error {
	pid, err := hostPID(filepath.Join(cgroup, "system", comp.Name), comp.PID)
	if err != nil {
		return fmt.Errorf("find the process of %s: %w", comp.Name, err)
	}
	for file, dir := range map[string]string{"cmdline": "cmd", "environ": "env"} {
		list, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		if err != nil {
			return err
		}
		if bytes.ContainsRune(list, '\n') {
			return fmt.Errorf("%s of %s: an entry has more than one line", file, comp.Name)
		}
		if err := os.WriteFile(filepath.Join(c.dir, dir, comp.Name), bytes.ReplaceAll(list, []byte{0}, []byte{'\n'}), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// hostPID returns the host's pid of the process of a cgroup that has the given pid in the node's pid namespace.
func hostPID(cgroup string, inside int) (int, error) {
	pids, err := cgroupPIDs(cgroup)
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		ns := strings.Fields(field(fmt.Sprintf("/proc/%d/status", pid), "NSpid"))
		if len(ns) > 0 && ns[len(ns)-1] == strconv.Itoa(inside) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no process of %s has pid %d inside", cgroup, inside)
}

func cgroupPIDs(cgroup string) ([]int, error) {
	b, err := os.ReadFile(filepath.Join(cgroup, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, f := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// settings returns shell variables for the script.
func (c *setup) settings(s *status.Status) []byte {
	in := c.cfg.Inside
	var b strings.Builder
	for _, kv := range []struct {
		key   string
		value any
	}{
		{"node", s.NodeName}, {"components", c.cfg.ComponentsDir},
		{"api_port", in.APIServerPort}, {"etcd_port", in.EtcdMetricsPort},
		{"controller_manager_port", in.ControllerManagerPort}, {"scheduler_port", in.SchedulerPort},
		{"kubelet_port", in.KubeletHealthzPort}, {"proxy_port", in.KubeProxyHealthzPort}, {"flannel_port", in.FlannelHealthzPort},
	} {
		fmt.Fprintf(&b, "%s='%v'\n", kv.key, kv.value)
	}
	return []byte(b.String())
}

// copyDir copies the regular files below a directory, with their modes.
func copyDir(from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		switch {
		case d.IsDir():
			return os.MkdirAll(target, 0o700)
		case d.Type().IsRegular():
			return copyFile(path, target)
		}
		return nil
	})
}

func copyFile(from, to string) error {
	st, err := os.Stat(from)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, st.Mode().Perm())
}
