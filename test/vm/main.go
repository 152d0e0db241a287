// Program vm tests the node on a machine that systemd booted, with delegated controllers. The machine is a virtual machine of QEMU.
//
//	vm [VERDICT...]    on the host, as root: creates the machine, runs it and shows its verdicts; see docs/virtual-machine.md
//	vm guest           in the machine, as root: runs the verdicts
//
// hack/vm.sh builds and runs it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// boot is a way in which the machine boots.
type boot int

const (
	withSystemd    boot = iota // the first boot
	rebooted                   // the boot after the service was installed
	withoutSystemd             // a boot from new images, with a shell script as init
)

// verdict is one test in the machine. It may run for limit. A verdict that is not a default one runs only if it is named.
type verdict struct {
	name   string
	boot   boot
	limit  time.Duration
	run    func(*guest, context.Context) error
	byName bool
}

// verdicts lists the tests in the order in which they run. An emulated processor is about twenty times slower than that of the host.
var verdicts = []verdict{
	{name: "prepare", limit: 3 * time.Minute, run: (*guest).prepare},
	{name: "missing_controllers", limit: 3 * time.Minute, run: (*guest).missingControllers},
	{name: "pasted", limit: 4 * time.Minute, run: (*guest).pasted},
	{name: "scope_by_ssh", limit: 8 * time.Minute, run: func(g *guest, ctx context.Context) error { return g.scopeOf(ctx, g.login) }},
	{name: "scope_by_su", limit: 8 * time.Minute, run: func(g *guest, ctx context.Context) error { return g.scopeOf(ctx, g.bySu) }},
	{name: "scope_by_cron", limit: 15 * time.Minute, run: func(g *guest, ctx context.Context) error { return g.scopeOf(ctx, g.byCron) }},
	{name: "clock", limit: 12 * time.Minute, run: (*guest).clock},
	{name: "rootful", limit: 30 * time.Minute, run: (*guest).rootful},
	{name: "limits", limit: 30 * time.Minute, run: func(g *guest, ctx context.Context) error { return g.endToEnd(ctx, "Test(Limits|OwnCPUs)$") }},
	{name: "joined", limit: 80 * time.Minute, run: (*guest).joined, byName: true},
	{name: "policies", limit: 30 * time.Minute, run: (*guest).policies},
	{name: "installed", limit: 15 * time.Minute, run: (*guest).installed},
	{name: "killed", limit: 20 * time.Minute, run: (*guest).killed},
	{name: "verified", limit: 30 * time.Minute, run: (*guest).verified},
	{name: "mounts_cost", limit: 50 * time.Minute, run: (*guest).mountsCost},
	{name: "on_demand", limit: 25 * time.Minute, run: (*guest).onDemand},
	{name: "back", boot: rebooted, limit: 20 * time.Minute, run: (*guest).back},
	{name: "stopped", boot: rebooted, limit: 5 * time.Minute, run: (*guest).stopped},
	{name: "uninstalled", boot: rebooted, limit: 3 * time.Minute, run: (*guest).uninstalled},
	{name: "without_systemd", boot: withoutSystemd, limit: 15 * time.Minute, run: (*guest).withoutSystemd},
}

// selected returns the verdicts with these names, or the default ones if there are no names.
func selected(names []string) ([]verdict, error) {
	var chosen []verdict
	for _, v := range verdicts {
		if len(names) == 0 && !v.byName || slices.Contains(names, v.name) {
			chosen = append(chosen, v)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(verdicts, func(v verdict) bool { return v.name == name }) {
			return nil, fmt.Errorf("no such verdict: %s", name)
		}
	}
	return chosen, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	var err error
	if args := os.Args[1:]; slices.Equal(args, []string{"guest"}) {
		err = runGuest(ctx)
	} else {
		err = runHost(ctx, args)
	}
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

// join returns an error with the text and what, if text is not empty.
func unexpected(what, text string) error {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	return errors.New(what + ": " + strings.TrimSpace(text))
}
