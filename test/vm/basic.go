package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

//go:embed bounded.yaml
var boundedPods []byte

// prepare lets root log in as dev, and starts dev's user manager.
func (g *guest) prepare(ctx context.Context) error {
	_, err := g.root(ctx, `mkdir -p ~/.ssh
		ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519 &&
		install -D -o dev -g dev -m 0600 ~/.ssh/id_ed25519.pub ~dev/.ssh/authorized_keys &&
		chown dev:dev ~dev/.ssh && chmod 0700 ~dev/.ssh && systemctl --failed --no-pager; loginctl enable-linger dev`)
	if err != nil {
		return err
	}
	_, err = g.login(ctx, patience, "true")
	return err
}

// missingControllers checks that `check` reports the controllers that the user manager does not delegate, and how root changes that.
func (g *guest) missingControllers(ctx context.Context) error {
	out, err := g.login(ctx, patience, nodeProgram+" check")
	g.printf("check: %v\n", err) // it may find more
	for _, want := range []string{"Delegate=cpu cpuset io memory pids", "cpu is not delegated to "} {
		if !strings.Contains(out, want) {
			return fmt.Errorf("check does not print %q", want)
		}
	}
	if !slices.ContainsFunc(lines(out), func(l string) bool {
		return strings.HasPrefix(l, "warn  RN-CGROUP ") && strings.Contains(l, "lacks cpu")
	}) {
		return errors.New("check does not warn that the cgroup lacks cpu")
	}
	return os.WriteFile(filepath.Join(share, "check"), []byte(out), 0o644)
}

// pasted checks that the commands that `check` prints for root are sufficient after a new login.
func (g *guest) pasted(ctx context.Context) error {
	out, err := os.ReadFile(filepath.Join(share, "check"))
	if err != nil {
		return err
	}
	commands := filepath.Join(share, "paste")
	if err := os.WriteFile(commands, []byte(hints(string(out))), 0o644); err != nil {
		return err
	}
	g.printf("pasting:\n%s", hints(string(out)))
	if _, err := g.root(ctx, "bash -e "+commands); err != nil {
		return err
	}
	if _, err := g.root(ctx, fmt.Sprintf("systemctl stop user@%d.service", devUID())); err != nil {
		return err
	}
	after, err := g.login(ctx, patience, nodeProgram+" check")
	g.printf("check: %v\n", err)
	for _, line := range lines(after) {
		if strings.HasPrefix(line, "fail") || strings.Contains(line, "lacks") {
			return errors.New("check still reports: " + line)
		}
	}
	if !strings.Contains(after, "cgroup of the user manager") {
		return errors.New("check does not mention the cgroup of the user manager")
	}
	return nil
}

// hints returns the commands that follow the findings in the output of `check`.
func hints(check string) string {
	var b strings.Builder
	within := false
	for line := range strings.Lines(check) {
		switch {
		case strings.HasPrefix(line, "warn"), strings.HasPrefix(line, "fail"), strings.HasPrefix(line, "hint:"):
			within = true
		case line[0] >= 'a' && line[0] <= 'z' || line[0] >= '0' && line[0] <= '9':
			within = false
		case within:
			b.WriteString(line)
		}
	}
	return b.String()
}

// bounded checks a node that sh starts: it gets its own cgroup below dir with every controller, and its components run there. The kernel
// enforces the limits of pods, and the node stays Ready. Nothing is left after down. It returns the node's cgroup.
func (g *guest) bounded(ctx context.Context, account, dir string, sh shell) (string, error) {
	before, err := nodeCgroups(dir)
	if err != nil {
		return "", err
	}
	if err := g.startPods(ctx, sh); err != nil {
		return "", err
	}
	own, err := g.ownCgroup(dir)
	if err != nil {
		return "", err
	}
	if err := g.podLimits(own); err != nil {
		return "", err
	}
	if err := g.ready(ctx, g.as(account)); err != nil {
		return "", err
	}
	if _, err := g.as(account)(ctx, patience, nodeProgram+" down"); err != nil {
		return "", err
	}
	return own, g.nothingLeft(ctx, account, dir, before)
}

// startPods has sh start a node with a pod that has limits and another that uses too much memory.
func (g *guest) startPods(ctx context.Context, sh shell) error {
	const manifest = "/tmp/pods.yaml"
	if err := os.WriteFile(manifest, boundedPods, 0o644); err != nil {
		return err
	}
	kubectl := func(line string) string { return nodeProgram + " kubectl " + line }
	wait := fmt.Sprintf("wait --timeout=%v ", patience)
	_, err := sh(ctx, severalLimit, steps(kubectl("get pods,nodes -o wide"),
		nodeProgram+" check",
		fmt.Sprintf("%s up --timeout %v", nodeProgram, patience),
		kubectl("delete --ignore-not-found -f "+manifest),
		nodeProgram+" images import "+tree+"/busybox.tar",
		kubectl("apply -f "+manifest),
		kubectl(wait+"--for=condition=Ready pod/bounded"),
		kubectl(wait+"--for=jsonpath='{.status.phase}'=Failed pod/greedy")))
	return err
}

// ready checks that the node is Ready after a pod used too much memory.
func (g *guest) ready(ctx context.Context, sh shell) error {
	for _, answer := range []struct{ command, want string }{
		{"kubectl get pod greedy -o jsonpath='{..reason}'", "OOMKilled"},
		{"status -o json", `"state": "ready"`},
		{`kubectl get nodes -o jsonpath='{.items[*].status.conditions[?(@.type=="Ready")].status}'`, "True"},
	} {
		out, err := sh(ctx, patience, nodeProgram+" "+answer.command)
		if err != nil {
			return err
		}
		if !strings.Contains(out, answer.want) {
			return fmt.Errorf("%s: want %s", answer.command, answer.want)
		}
	}
	return nil
}

// ownCgroup returns the cgroup of the running node, and checks its controllers and its components' cgroups.
func (g *guest) ownCgroup(dir string) (string, error) {
	own, err := directories(dir, func(path string) bool { return strings.HasSuffix(path, "/system/etcd") })
	if err != nil || len(own) == 0 {
		return "", errors.Join(err, errors.New("no cgroup of etcd below "+dir))
	}
	top := strings.TrimSuffix(own[0], "/system/etcd")
	controllers, err := os.ReadFile(filepath.Join(top, "cgroup.subtree_control"))
	g.printf("%s: %s", top, controllers)
	for _, want := range []string{"cpu", "cpuset", "io", "memory", "pids"} {
		if !slices.Contains(strings.Fields(string(controllers)), want) {
			err = errors.Join(err, errors.New("no controller "+want))
		}
	}
	for _, component := range []string{"containerd", "etcd", "kube-apiserver", "kubelet"} {
		processes, rerr := os.ReadFile(filepath.Join(top, "system", component, "cgroup.procs"))
		if rerr != nil || len(processes) == 0 {
			err = errors.Join(err, rerr, errors.New("no process in the cgroup of "+component))
		}
	}
	return top, err
}

// podLimits checks that a cgroup of a pod below own has the limits of the pod bounded.
func (g *guest) podLimits(own string) error {
	pods, err := directories(own, func(path string) bool { return strings.Contains(path, "kubepods") })
	if err != nil {
		return err
	}
	found := false
	for _, pod := range pods {
		memory, _ := os.ReadFile(filepath.Join(pod, "memory.max")) // the pod's cgroup may be removed at any time
		cpu, _ := os.ReadFile(filepath.Join(pod, "cpu.max"))
		if strings.TrimSpace(string(memory)) != "67108864" {
			continue
		}
		g.printf("limits of %s: cpu %s", pod, cpu)
		found = found || strings.TrimSpace(string(cpu)) == "20000 100000"
	}
	if !found {
		return errors.New("no cgroup with memory.max 67108864 and cpu.max 20000 100000")
	}
	return nil
}

// nothingLeft checks that no cgroup, process or runtime directory of the account's node is left.
func (g *guest) nothingLeft(ctx context.Context, account, dir string, before []string) error {
	after, err := nodeCgroups(dir)
	if err != nil {
		return err
	}
	after = slices.DeleteFunc(after, func(path string) bool { return slices.Contains(before, path) })
	out, _ := g.root(ctx, `ls -d "/run/user/$(id -u `+account+`)/rootlessnode/default"; pgrep -u `+account+" -a -f 'containerd|rootlessnode'; true")
	return unexpected("left after the stop", strings.Join(after, "\n")+out)
}

// nodeCgroups returns the cgroups of nodes below dir, which may be missing.
func nodeCgroups(dir string) ([]string, error) {
	return directories(dir, func(path string) bool { return strings.Contains(path, "rootlessnode") })
}

// directories returns the directories below dir that match. They may be removed meanwhile.
func directories(dir string, match func(path string) bool) (found []string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && d.IsDir() && match(path) {
			found = append(found, path)
		}
		return err
	})
	return found, err
}

// scopeOf checks a node of dev that sh has started. Its cgroup is a scope of the user manager.
func (g *guest) scopeOf(ctx context.Context, sh shell) error {
	if _, err := g.dev(ctx, nodeProgram+" down"); err != nil { // the node of an earlier verdict that failed
		g.printf("%v\n", err)
	}
	own, err := g.bounded(ctx, guestUser, devSlice(), sh)
	if err == nil && !strings.Contains(own, "/rootlessnode-default.scope") {
		err = errors.New("not in a scope: " + own)
	}
	return err
}

// withoutSystemd checks an account that `host setup` prepared.
func (g *guest) withoutSystemd(ctx context.Context) error {
	for _, flag := range []string{" --dry-run", ""} {
		if _, err := g.root(ctx, nodeProgram+" host setup --user plain --create-user"+flag); err != nil {
			return err
		}
	}
	if _, err := g.bounded(ctx, "plain", "/sys/fs/cgroup/rootlessnode", g.byEnter); err != nil {
		return err
	}
	_, err := g.root(ctx, nodeProgram+" host undo --user plain")
	return err
}

// endToEnd runs end-to-end tests with real components as dev.
func (g *guest) endToEnd(ctx context.Context, tests string) error {
	_, err := g.login(ctx, time.Hour, fmt.Sprintf("ROOTLESSNODE_E2E_PATIENCE=5 ROOTLESSNODE_E2E_OUT=%[1]s ROOTLESSNODE_E2E_IMAGE=%[1]s/busybox.tar "+
		"ROOTLESSNODE_TEST_PROMISES=user,userns,cgroup2,subids,delegated-cgroup,limits,cpuset,nft-queue,e2e-build "+
		"%[1]s/bin/e2e.test -test.v -test.parallel=1 -test.run='%[2]s'", tree, tests))
	return err
}

// policies checks network policies: the kernel's modules are loaded automatically, and a client has an address that is not a loopback
// address of the host.
func (g *guest) policies(ctx context.Context) error {
	const modules = "grep -E '^(nft_queue|nfnetlink_queue|br_netfilter) ' /proc/modules; true"
	if _, err := g.root(ctx, modules+"; ip address add 192.0.2.10/32 dev lo"); err != nil {
		return err
	}
	err := g.endToEnd(ctx, "TestNetworkPolicy$")
	_, derr := g.root(ctx, modules+"; ip address del 192.0.2.10/32 dev lo")
	return errors.Join(err, derr)
}

// joined makes this machine a worker of a cluster whose control plane is a node on the host. TestJoinMachine on the host does all steps
// over ssh, and writes its result to dev's home. The address of the machine is fixed.
func (g *guest) joined(ctx context.Context) error {
	_, err := g.root(ctx, `for device in /sys/class/net/*/device; do device=$(basename "$(dirname "$device")"); done
		ip address add 10.99.0.2/24 dev "$device" && ip link set "$device" up && ip -brief address &&
		cat `+filepath.Join(share, "key.pub")+` >>~dev/.ssh/authorized_keys`) // prepare makes the directory
	if err != nil {
		return err
	}
	var result []byte
	err = g.within(ctx, 75*time.Minute, "the result of the host, whose log is joined-host.log,", func() error {
		var err error
		if result, err = os.ReadFile("/home/" + guestUser + "/joined"); err == nil && len(result) == 0 {
			err = errors.New("empty")
		}
		return err
	})
	g.section("journalctl", "--no-pager", "-q", "-o", "short-monotonic", "-t", "sshd", "-n", "20")
	if err == nil && strings.TrimSpace(string(result)) != "passed" {
		err = fmt.Errorf("the test on the host: %s", result)
	}
	return err
}
