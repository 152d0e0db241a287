package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/mountns"
)

func renderCreated(c *mountns.Created) string {
	outcome := "created"
	if c.Reused {
		outcome = "already exists"
	}
	return fmt.Sprintf("mount namespace %s %s, pinned to %s\n", c.Name, outcome, c.Pin) + renderGuarantees(c.Guarantees, c.Reasons)
}

// guaranteeTexts describe the guarantees 1 to 3.
var guaranteeTexts = [...]string{
	"host mounts propagate to the runtime, the kubelet and HostToContainer volumes",
	"the runtime, the kubelet and Bidirectional volumes see each other's mounts",
	"the host sees those mounts",
}

func renderGuarantees(g mountns.Guarantees, reasons []string) string {
	var b strings.Builder
	for i, holds := range []bool{g.HostToInside, g.Inside, g.InsideToHost} {
		word := "no "
		if holds {
			word = "yes"
		}
		fmt.Fprintf(&b, "  %d %s   %s\n", i+1, word, guaranteeTexts[i])
		for _, r := range reasons {
			if text, ok := strings.CutPrefix(r, fmt.Sprintf("%d: ", i+1)); ok {
				fmt.Fprintf(&b, "          reason: %s\n", text)
			}
		}
	}
	return b.String()
}

func renderNamespaces(all []mountns.Namespace) string {
	rows := [][]string{{"NAME", "PROPAGATION", "PROCESSES", "ID", "PIN"}}
	for _, n := range all {
		processes, pin := strconv.Itoa(n.Processes), n.Pin
		if n.Fault != "" {
			processes, pin = "", n.Pin+": "+n.Fault
		}
		rows = append(rows, []string{n.Name, orDash(string(n.Propagation)), processes, orDash(n.ID), pin})
	}
	return table(rows)
}

func orDash(s string) string { return cmp.Or(s, "-") }

// showMountStatus shows st. It returns an error with exit code 4 if a daemon runs outside of the mount namespace.
func showMountStatus(a *app, st *mountns.Status, stale []string) error {
	if a.output == "json" {
		a.printJSON(a.out, struct {
			*mountns.Status
			StaleDropIns []string `json:"staleDropIns,omitempty"`
		}{st, stale})
		if st.Err() != nil {
			return exitCode(errdefs.ExitComponent) // the JSON object has the details
		}
		return nil
	}
	a.printf("namespace    %s   %s   %s\npin          %s\nguarantees\n%s", st.Name, st.Propagation, st.ID, st.Pin,
		renderGuarantees(st.Guarantees, st.Reasons))
	a.printf("inside       %d processes\n", len(st.Members))
	for _, p := range st.Members {
		if p.Daemon != "" {
			a.printf("  %-10s   pid %d\n", p.Daemon, p.PID)
		}
	}
	if len(st.Outside) > 0 {
		a.printf("outside\n")
	}
	for _, p := range st.Outside {
		a.printf("  %-10s   pid %d   %s\n", p.Daemon, p.PID, p.Namespace)
	}
	for _, s := range stale {
		a.printf("drop-in      %s\n", s)
	}
	return st.Err()
}
