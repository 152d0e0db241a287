package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Files of a rootful node. rootfulUnits is a shell script that creates its units.
var (
	//go:embed rootful.sh
	rootfulScript string
)

const (
	rootfulKubeconfig = "/etc/rootful/kubeconfig"
	libexec           = tree + "/libexec/rootlessnode"
	propagated        = "/var/lib/prop" // the directory that the pods mount
)

// propagationModes lists the mount propagations of the three static pods. The pod of mode i sleeps for nap(i) seconds, which identifies
// its process.
var propagationModes = []string{"None", "HostToContainer", "Bidirectional"}

func nap(mode int) string { return fmt.Sprintf("sleep %d", 36001+mode) }

// rootfulNode creates units for containerd and a kubelet like those of a distribution. The kubelet has no API server unless a flag sets
// one.
func (g *guest) rootfulNode(ctx context.Context, kubeletFlags string) error {
	_, err := g.run(ctx, patience, "env", "lib="+libexec, "flags="+kubeletFlags, "bash", "-c", rootfulScript)
	return err
}

// staticPods creates a pod for each mount propagation.
func staticPods() error {
	for i, mode := range propagationModes {
		script := "exec " + nap(i)
		if mode == "Bidirectional" {
			script = "busybox mount -t tmpfs by-pod /prop/by-pod || exit 1; " + script
		}
		text := fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: p-%s}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: rootlessnode.test/busybox:1
    command: [/bin/busybox, sh, -c, %q]
    securityContext: {privileged: true}
    volumeMounts: [{name: prop, mountPath: /prop, mountPropagation: %s}]
  volumes: [{name: prop, hostPath: {path: %s}}]
`, strings.ToLower(mode), script, mode, propagated)
		if err := os.WriteFile(filepath.Join("/etc/rootful/pods", mode+".yaml"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// startRootful starts the daemons and imports images, because the rootful containerd has no registry.
func (g *guest) startRootful(ctx context.Context) error {
	_, err := g.root(ctx, fmt.Sprintf(`systemctl start containerd kubelet && %[1]s/ctr -n k8s.io images import %[2]s/busybox.tar &&
		find %[2]s/share/rootlessnode/images -name '*pause*' -exec %[1]s/ctr -n k8s.io images import {} \;`, libexec, tree))
	return err
}

// podPID returns the process of the pod of a mode, or "".
func (g *guest) podPID(ctx context.Context, mode int) string {
	out, _ := g.root(ctx, "pgrep -xf '"+nap(mode)+"'")
	return strings.TrimSpace(out)
}

// sees reports whether the mount namespace of a process has a mount point with this suffix.
func sees(pid, suffix string) bool {
	table, _ := os.ReadFile(filepath.Join("/proc", pid, "mountinfo"))
	return slices.ContainsFunc(lines(string(table)), func(line string) bool {
		fields := strings.Fields(line)
		return len(fields) > 4 && strings.HasSuffix(fields[4], suffix)
	})
}

// unitProperty returns a property of a unit of the system manager.
func (g *guest) unitProperty(ctx context.Context, unit, name string) string {
	out, err := g.root(ctx, "systemctl show -P "+name+" "+unit)
	if err != nil {
		g.printf("%v\n", err)
	}
	return strings.TrimSpace(out)
}

// matrix checks which processes see the mount of the host and that of a pod, with a hidden or a visible namespace.
func (g *guest) matrix(ctx context.Context, visible bool) error {
	for _, name := range []string{"by-pod", "by-host"} {
		if err := os.MkdirAll(filepath.Join(propagated, name), 0o755); err != nil {
			return err
		}
	}
	if err := g.startRootful(ctx); err != nil {
		return err
	}
	pids := map[string]string{"host": "1"}
	for i, mode := range propagationModes {
		err := g.within(ctx, patience, "the pod "+mode, func() error {
			if pids[mode] = g.podPID(ctx, i); pids[mode] == "" {
				return errors.New("no process")
			}
			return nil
		})
		if err != nil {
			g.section("journalctl", "--no-pager", "-n", "60", "-u", "kubelet", "-u", "containerd")
			return err
		}
	}
	err := g.within(ctx, time.Minute, "the pod's mount", func() error {
		if !sees(pids["Bidirectional"], "/by-pod") {
			return errors.New("not mounted")
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := unix.Mount("by-host", filepath.Join(propagated, "by-host"), "tmpfs", 0, ""); err != nil {
		return err
	}
	for _, daemon := range []string{"kubelet", "containerd"} {
		pids[daemon] = g.unitProperty(ctx, daemon, "MainPID")
	}
	for _, name := range []string{"host", "kubelet", "containerd", "None", "HostToContainer", "Bidirectional"} {
		want := []string{"by-host", "by-pod"}
		switch {
		case name == "None":
			want = nil
		case name == "host" && !visible:
			want = want[:1]
		}
		var seen []string
		for _, mount := range []string{"by-host", "by-pod"} {
			if sees(pids[name], "/"+mount) {
				seen = append(seen, mount)
			}
		}
		g.printf("%s sees: %v\n", name, seen)
		if !slices.Equal(seen, want) {
			err = errors.Join(err, fmt.Errorf("%s sees %v, want %v", name, seen, want))
		}
	}
	_, serr := g.root(ctx, nodeProgram+" mountns status")
	return errors.Join(err, serr)
}

// removeRootful stops the pods and daemons, and deletes the namespace. dev has pods too, which it does not stop.
func (g *guest) removeRootful(ctx context.Context) error {
	_, err := g.root(ctx, fmt.Sprintf(`systemctl stop kubelet
		pkill -u root -xf 'sleep 3600[123]'
		systemctl stop containerd
		pkill -u root -f '%s/[c]ontainerd-shim'
		umount %[2]s/by-host
		while umount %[2]s/by-pod 2>/dev/null; do :; done
		systemctl stop rootlessnode-mountns-kubens
		%[3]s mountns drop-in remove && %[3]s mountns delete --force`, libexec, propagated, nodeProgram))
	return err
}

// rootful checks that drop-ins put the kubelet and the runtime of a rootful node into a hidden mount namespace.
func (g *guest) rootful(ctx context.Context) error {
	dropIn := func(flags string) error {
		_, err := g.root(ctx, nodeProgram+" mountns drop-in "+flags+" containerd kubelet && systemctl cat kubelet")
		return err
	}
	namespace := func() string {
		link, _ := os.Readlink(filepath.Join("/proc", g.unitProperty(ctx, "kubelet", "MainPID"), "ns/mnt"))
		return link
	}
	if err := g.rootfulNode(ctx, ""); err != nil {
		return err
	}
	if err := staticPods(); err != nil {
		return err
	}
	if err := dropIn(""); err != nil {
		return err
	}
	if err := g.matrix(ctx, false); err != nil {
		return err
	}
	before := namespace()
	if _, err := g.root(ctx, "systemctl restart kubelet"); err != nil {
		return err
	}
	host, err := os.Readlink("/proc/1/ns/mnt")
	if after := namespace(); err != nil || before == "" || after != before || after == host {
		return fmt.Errorf("mount namespace of the kubelet before and after a restart: %s, %s; of the host: %s: %w", before, after, host, err)
	}
	if err := g.wrongNamespace(ctx); err != nil {
		return err
	}
	if err := g.removeRootful(ctx); err != nil {
		return err
	}
	g.printf("with --visible:\n")
	if err := dropIn("--visible"); err != nil {
		return err
	}
	if err := g.matrix(ctx, true); err != nil {
		return err
	}
	if err := g.removeRootful(ctx); err != nil {
		return err
	}
	return os.RemoveAll("/etc/rootful")
}

// wrongNamespace checks that `mountns status` fails and names a containerd in the wrong mount namespace, only if there is one.
func (g *guest) wrongNamespace(ctx context.Context) error {
	const status = nodeProgram + " mountns status 2>&1"
	if _, err := g.root(ctx, status); err != nil {
		return err
	}
	_, err := g.root(ctx, "systemd-run --unit=unhidden "+libexec+"/containerd --config /etc/rootful/containerd.toml --address /run/unhidden.sock --root /var/lib/unhidden --state /run/unhidden")
	if err != nil {
		return err
	}
	err = g.within(ctx, time.Minute, "a containerd in the wrong mount namespace", func() error {
		_, err := os.Stat("/run/unhidden.sock")
		return err
	})
	if err != nil {
		return err
	}
	pid := g.unitProperty(ctx, "unhidden", "MainPID")
	out, err := g.root(ctx, status)
	if err == nil || !slices.Contains(strings.FieldsFunc(out, func(r rune) bool { return r < '0' || r > '9' }), pid) {
		return fmt.Errorf("mountns status does not report process %s: %w", pid, err)
	}
	_, err = g.root(ctx, "systemctl stop unhidden")
	return err
}

// verified runs `mounts verify` for a rootful node in the cluster of dev's service, with a hidden and a visible namespace.
func (g *guest) verified(ctx context.Context) error {
	if err := g.rootfulNode(ctx, "--kubeconfig="+rootfulKubeconfig+" --hostname-override=rootful"); err != nil {
		return err
	}
	kubeconfig, err := g.dev(ctx, nodeProgram+" kubeconfig")
	if err != nil {
		return err
	}
	if err := os.WriteFile(rootfulKubeconfig, []byte(kubeconfig), 0o600); err != nil {
		return err
	}
	for _, round := range []struct{ flags, want string }{{"", "1 yes, 2 yes, 3 no"}, {"--visible", "1 yes, 2 yes, 3 yes"}} {
		if err := g.verifiedAs(ctx, round.flags, round.want); err != nil {
			return err
		}
	}
	_, err = g.dev(ctx, nodeProgram+" kubectl delete node rootful")
	return errors.Join(err, os.RemoveAll("/etc/rootful"))
}

// verifiedAs checks the answer for the namespace that drop-in creates with these flags.
func (g *guest) verifiedAs(ctx context.Context, flags, want string) error {
	if _, err := g.root(ctx, nodeProgram+" mountns drop-in "+flags+" containerd kubelet"); err != nil {
		return err
	}
	if err := g.startRootful(ctx); err != nil {
		return err
	}
	err := g.within(ctx, patience, "the rootful Node", func() error {
		_, err := g.dev(ctx, nodeProgram+" kubectl get node rootful")
		return err
	})
	if err != nil {
		g.section("journalctl", "--no-pager", "-n", "60", "-u", "kubelet")
		return err
	}
	out, err := g.root(ctx, fmt.Sprintf("%s mounts verify --kubeconfig %s --node rootful --image registry.k8s.io/pause:3.10.2 --timeout %v",
		nodeProgram, rootfulKubeconfig, patience-10*time.Second))
	if err != nil || !strings.Contains(out, want) {
		return fmt.Errorf("mounts verify does not print %q: %w", want, err)
	}
	return g.removeRootful(ctx)
}
