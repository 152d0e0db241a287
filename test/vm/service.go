package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// serviceLimit is the time limit for a start of dev's service, and stopLimit that for an orderly stop.
var serviceLimit = patiently(10 * time.Minute)

const stopLimit = 20 * time.Second

var rollout = fmt.Sprintf("%s kubectl rollout status deployment/sleeper --timeout=%v", nodeProgram, patience)

// installed checks that the service is Ready when install returns, and that its log is in the journal.
func (g *guest) installed(ctx context.Context) error {
	if _, err := g.login(ctx, serviceLimit, nodeProgram+" install"); err != nil {
		return err
	}
	out, err := g.login(ctx, patience, "systemctl --user show -P StatusText rootlessnode@default; systemctl --user status rootlessnode@default --no-pager >&2")
	if err != nil || strings.TrimSpace(out) != "ready" {
		return fmt.Errorf("the service's status is %q, want ready: %w", out, err)
	}
	_, err = g.login(ctx, severalLimit, steps(nodeProgram+" kubectl get pods -A -o wide",
		nodeProgram+" images import "+tree+"/busybox.tar",
		nodeProgram+" kubectl create deployment sleeper --image=rootlessnode.test/busybox:1 -- /bin/sh -c 'trap exit TERM; sleep 3600 & wait'",
		rollout))
	if err != nil {
		return err
	}
	out, err = g.login(ctx, patience, "journalctl --user -u rootlessnode@default --no-pager -n 20 >&2; "+
		"journalctl --user -u rootlessnode@default --no-pager -o cat COMPONENT=kubelet")
	if err == nil && out == "" {
		err = errors.New("the journal has no line of the kubelet")
	}
	return err
}

// killed checks that systemd restarts the node after its parent was killed, even if processes of it are left.
func (g *guest) killed(ctx context.Context) error {
	before, err := g.serviceProperty(ctx, "MainPID")
	if err != nil {
		return err
	}
	var pid int
	if _, err := fmt.Sscan(before, &pid); err != nil || pid <= 1 {
		return fmt.Errorf("the service's main process is %q", before)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return err
	}
	err = g.within(ctx, serviceLimit, "the service after its parent was killed", func() error {
		now, err := g.serviceProperty(ctx, "MainPID")
		if err == nil && (now == "0" || now == before) {
			err = errors.New("its main process is " + now)
		}
		if err == nil {
			_, err = g.dev(ctx, "systemctl --user is-active --quiet rootlessnode@default")
		}
		return err
	})
	if err != nil {
		return err
	}
	_, err = g.dev(ctx, nodeProgram+" status && "+rollout)
	return err
}

// onDemand checks that systemd listens on the port of the API server, and that the node starts when a client connects.
func (g *guest) onDemand(ctx context.Context) error {
	_, err := g.as(guestUser)(ctx, serviceLimit, nodeProgram+" install --on-demand && systemctl --user stop rootlessnode@default && ! systemctl --user is-active rootlessnode@default")
	if err != nil {
		return err
	}
	err = g.within(ctx, serviceLimit, "a response of the node that was started on demand", func() error {
		_, err := g.dev(ctx, nodeProgram+" kubectl get nodes")
		return err
	})
	if err != nil {
		return err
	}
	_, err = g.as(guestUser)(ctx, serviceLimit, "systemctl --user status rootlessnode@default.socket rootlessnode@default.service --no-pager; "+
		nodeProgram+" install && ! systemctl --user is-active rootlessnode@default.socket")
	return err
}

// back checks that the node and its pods start automatically after a reboot.
func (g *guest) back(ctx context.Context) error {
	var state string
	err := g.within(ctx, serviceLimit, "the service after the reboot", func() error {
		var err error
		if state, err = g.serviceProperty(ctx, "ActiveState"); err == nil && state != "active" && state != "failed" {
			err = errors.New("it is " + state)
		}
		return err
	})
	if err != nil || state != "active" {
		g.section("su", guestUser, "-c", "XDG_RUNTIME_DIR=/run/user/$(id -u) systemctl --user status rootlessnode@default --no-pager -n 60")
		return errors.Join(err, errors.New("the service is "+state))
	}
	sessions, err := g.root(ctx, "loginctl list-sessions --no-legend")
	if err = errors.Join(err, unexpected("sessions", sessions)); err != nil {
		return err
	}
	_, err = g.dev(ctx, fmt.Sprintf("%[1]s status && %[1]s kubectl wait --for=condition=Ready pod -l app=sleeper --timeout=%[2]v && %[1]s kubectl get pods -A -o wide",
		nodeProgram, patience))
	return err
}

// stopped checks that the node stops cleanly within stopLimit, with nothing left.
func (g *guest) stopped(ctx context.Context) error {
	began := time.Now()
	if _, err := g.dev(ctx, "systemctl --user stop rootlessnode@default"); err != nil {
		return err
	}
	took := time.Since(began)
	g.printf("stopped in %v\n", took)
	result, err := g.serviceProperty(ctx, "Result")
	g.section("su", guestUser, "-c", "XDG_RUNTIME_DIR=/run/user/$(id -u) systemctl --user status rootlessnode@default --no-pager -n 30")
	if err == nil && result != "success" {
		err = errors.New("the result of the service is " + result)
	}
	if took > stopLimit {
		err = errors.Join(err, fmt.Errorf("the stop took %v", took))
	}
	left, lerr := directories(devSlice(), func(path string) bool { return strings.Contains(path, "rootlessnode@default") })
	err = errors.Join(err, lerr, unexpected("cgroups", strings.Join(left, "\n")))
	return errors.Join(err, g.nothingLeft(ctx, guestUser, "/nonexistent", nil))
}

// uninstalled checks that uninstall removes the unit.
func (g *guest) uninstalled(ctx context.Context) error {
	_, err := g.dev(ctx, nodeProgram+" uninstall")
	if unit := "/home/" + guestUser + "/.config/systemd/user/rootlessnode@.service"; err == nil && exists(unit) {
		err = errors.New(unit + " exists")
	}
	return err
}

// crowd is a Deployment whose number of pods the test changes.
const crowd = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"crowd"},"spec":{"replicas":0,"selector":{"matchLabels":{"app":"crowd"}},
"template":{"metadata":{"labels":{"app":"crowd"}},"spec":{"terminationGracePeriodSeconds":0,"containers":[{"name":"main",
"image":"rootlessnode.test/busybox:1","command":["sleep","3600"]}]}}}}`

// mountsCost measures the processor time of PID 1 and dev's user manager while thirty pods with their mounts are created and deleted, while
// nothing happens, and while the same number of mounts is made in the host's namespace.
func (g *guest) mountsCost(ctx context.Context) error {
	const idle = 2 * time.Minute
	insideMounts := func() (int, error) {
		out, err := g.dev(ctx, nodeProgram+" exec -- cat /proc/self/mountinfo")
		return len(lines(out)), err
	}
	inside, err := insideMounts()
	if err != nil {
		return err
	}
	hostMounts, err := os.ReadFile("/proc/1/mountinfo")
	if err != nil {
		return err
	}
	if err := os.WriteFile("/tmp/crowd.json", []byte(crowd), 0o644); err != nil {
		return err
	}
	before, began := g.busy(ctx), time.Now()
	kubectl := func(line string) error {
		_, err := g.dev(ctx, nodeProgram+" kubectl "+line)
		return err
	}
	if err := kubectl("apply -f /tmp/crowd.json"); err != nil {
		return err
	}
	for pods := 5; pods <= 30; pods += 5 { // an emulated machine cannot start thirty at the same time
		if err := kubectl(fmt.Sprintf("scale deployment/crowd --replicas=%d", pods)); err != nil {
			return err
		}
		if err := kubectl(fmt.Sprintf("rollout status deployment/crowd --timeout=%v", patience)); err != nil {
			return err
		}
	}
	n, err := insideMounts()
	if err != nil {
		return err
	}
	n -= inside
	if now, err := os.ReadFile("/proc/1/mountinfo"); err != nil || len(lines(string(now))) != len(lines(string(hostMounts))) {
		return fmt.Errorf("mounts of the host before and now:\n%s\n%s\n%w", hostMounts, now, err)
	}
	for _, line := range []string{"scale deployment/crowd --replicas=0",
		fmt.Sprintf("wait pod --selector=app=crowd --for=delete --timeout=%v", patience), "delete deployment crowd"} {
		if err := kubectl(line); err != nil {
			return err
		}
	}
	g.printf("30 pods were created and deleted, with %d mounts, none of them in the host's namespace\n", n)
	spent := func(what string) {
		g.printf("%s: %.2f s of processor time of PID 1 and the user manager\n", what, (g.busy(ctx) - before).Seconds())
	}
	spent(fmt.Sprintf("hidden, %d mounts in %v", n, time.Since(began).Round(time.Second)))
	before = g.busy(ctx)
	time.Sleep(idle)
	spent(fmt.Sprintf("idle for %v", idle))
	before = g.busy(ctx)
	pause := idle / time.Duration(max(n, 1))
	for i := range n {
		dir := fmt.Sprintf("/tmp/visible/%d", i)
		if err := errors.Join(os.MkdirAll(dir, 0o755), unix.Mount("tmpfs", dir, "tmpfs", 0, "")); err != nil {
			return err
		}
		time.Sleep(pause)
	}
	for i := range n {
		if err := unix.Unmount(fmt.Sprintf("/tmp/visible/%d", i), 0); err != nil {
			return err
		}
		time.Sleep(pause)
	}
	spent(fmt.Sprintf("visible, %d mounts in %v", n, 2*idle))
	if n < 90 {
		return fmt.Errorf("only %d mounts", n)
	}
	return nil
}

// busy returns the processor time that the host's PID 1 and dev's user manager have used.
func (g *guest) busy(ctx context.Context) time.Duration {
	const ticksPerSecond = 100
	out, err := g.root(ctx, fmt.Sprintf(`awk '{ t += $14 + $15 } END { print t }' /proc/1/stat "/proc/$(systemctl show -P MainPID user@%d.service)/stat"`, devUID()))
	var ticks int
	if _, serr := fmt.Sscan(out, &ticks); err != nil || serr != nil {
		g.printf("processor time: %v\n", errors.Join(err, serr))
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond
}
