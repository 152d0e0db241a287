package main

import (
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/rootlessnode/rootlessnode/test/conformance/internal/suite"
)

// Sets of specs.
const (
	setAll         = "all"
	setNode        = "node"
	setConformance = "conformance"
	setSlow        = "slow"
	setSmoke       = "smoke"
	// setNotInUserNS is what Kubernetes says cannot pass in a user namespace. Newer kernels allow some of it.
	setNotInUserNS = "not-in-userns"
)

func setNames() []string {
	return []string{setAll, setNode, setConformance, setSlow, setSmoke, setNotInUserNS}
}

const (
	// defaultProcs suits two cores: specs wait more than they work.
	defaultProcs = 10
	// passLimit ends a pass that hangs; the longest took half an hour on two cores.
	passLimit = 2 * time.Hour
	// mostAgain is how many failed specs are tried once more. More than these are no flakes.
	mostAgain = 25
)

// Labels of the suite, in ginkgo's filter language. What is left out is what KEP-2033 leaves out of its own acceptance
// job, and what no default cluster switches on. Slow specs that are no Conformance are a set of their own: nearly all of
// them resize pods, wait minutes for a limit that is not enforced on a hybrid machine, and are the same spec with other
// numbers.
const (
	notInUserNS = "Environment:NotInUserNS"
	leftOut     = "!Alpha && !Flaky"
	alone       = "(Serial || Disruptive)"
)

// twoNodes are specs that fail, rather than skip themselves, on any cluster of one node: they ask for a second and say so.
const twoNodes = "Conformance Tests should have at least two untainted nodes|Daemon set should rollback without unnecessary restarts"

// labelsOf is the filter of each set; empty for an unknown one.
func labelsOf(set string) string {
	return map[string]string{
		setAll:         "(Conformance || (NodeConformance && !Slow)) && !" + notInUserNS,
		setNode:        "NodeConformance && !Slow && !" + notInUserNS,
		setConformance: "Conformance && !" + notInUserNS,
		setSlow:        "NodeConformance && Slow && !Conformance && !" + notInUserNS,
		setSmoke:       "(Conformance || NodeConformance) && !" + notInUserNS,
		setNotInUserNS: "(Conformance || NodeConformance) && " + notInUserNS,
	}[set]
}

//go:embed smoke.txt
var smokeList string

// smokeSpecs are the full names of the smoke set.
func smokeSpecs() []string {
	var names []string
	for line := range strings.Lines(smokeList) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			names = append(names, line)
		}
	}
	return names
}

// passes are what a set is run as: first what may run side by side, then the rest.
func (o options) passes() ([]suite.Pass, error) {
	for _, focus := range o.focus {
		if _, err := regexp.Compile(focus); err != nil {
			return nil, fmt.Errorf("%w: -focus: %w", errUsage, err)
		}
	}
	if o.procs < 1 {
		return nil, fmt.Errorf("%w: -procs must be 1 or more", errUsage)
	}
	focus := o.focus
	labels := labelsOf(o.set)
	switch {
	case labels == "":
		return nil, fmt.Errorf("%w: unknown set %q, known are %s", errUsage, o.set, strings.Join(setNames(), ", "))
	case o.set == setSmoke && len(focus) > 0:
		return nil, fmt.Errorf("%w: the smoke set takes no -focus", errUsage)
	case o.set == setSmoke:
		for _, name := range smokeSpecs() {
			focus = append(focus, suite.Exactly(name))
		}
		if len(focus) == 0 {
			return nil, errors.New("the smoke set is empty")
		}
	}
	labels += " && " + leftOut
	pass := func(name, which string, procs int) suite.Pass {
		return suite.Pass{Name: name, Labels: labels + " && " + which, Focus: focus, Procs: procs, Limit: passLimit, Skip: []string{twoNodes}}
	}
	parallel := pass("parallel", "!"+alone, o.procs)
	if o.set == setSmoke {
		return []suite.Pass{parallel}, nil
	}
	return []suite.Pass{parallel, pass("serial", alone, 1)}, nil
}
