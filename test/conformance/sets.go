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
	// setNotInUserNS has the specs that cannot pass in a user namespace according to Kubernetes. Newer kernels allow some of them.
	setNotInUserNS = "not-in-userns"
	// setStorage has the specs for storage drivers, with the node's default StorageClass.
	setStorage = "storage"
)

func setNames() []string {
	return []string{setAll, setNode, setConformance, setSlow, setSmoke, setNotInUserNS, setStorage}
}

const (
	// defaultProcs is for two cores, because specs mostly wait.
	defaultProcs = 10
	// passLimit is the time limit of a pass. The longest pass took half an hour on two cores.
	passLimit = 2 * time.Hour
	// maxRetries is the largest number of failed specs that are run a second time. If more fail, they are not considered flakes.
	maxRetries = 25
)

// Labels of the suite, in ginkgo's filter language. They exclude the specs that the test job of KEP-2033 excludes, and specs of features
// that are off in a default cluster. Slow specs that are not Conformance are a separate set: nearly all of them resize pods, differ only in
// numbers, and wait minutes for a limit that is not enforced on a hybrid machine.
const (
	notInUserNS = "Environment:NotInUserNS"
	leftOut     = "!Alpha && !Flaky"
	alone       = "(Serial || Disruptive)"
)

// twoNodes matches specs that need a second node. On a cluster of one node they fail instead of skipping themselves.
const twoNodes = "Conformance Tests should have at least two untainted nodes|Daemon set should rollback without unnecessary restarts"

// labelsOf returns the filter of a set, or "" for an unknown set.
func labelsOf(set string) string {
	return map[string]string{
		setAll:         "(Conformance || (NodeConformance && !Slow)) && !" + notInUserNS,
		setNode:        "NodeConformance && !Slow && !" + notInUserNS,
		setConformance: "Conformance && !" + notInUserNS,
		setSlow:        "NodeConformance && Slow && !Conformance && !" + notInUserNS,
		setSmoke:       "(Conformance || NodeConformance) && !" + notInUserNS,
		setNotInUserNS: "(Conformance || NodeConformance) && " + notInUserNS,
		setStorage:     "!Slow && !Disruptive && !" + notInUserNS,
	}[set]
}

//go:embed smoke.txt
var smokeList string

// storageDriver describes the node's default StorageClass for the storage set.
//
//go:embed storage.yaml
var storageDriver []byte

// storageSpecs matches the specs that the description adds to the suite. foreignImages matches those of them that need a controller with images
// of its own.
const (
	storageSpecs  = "External.Storage"
	foreignImages = "should provision storage with any volume data source"
)

// smokeSpecs returns the full names of the specs of the smoke set.
func smokeSpecs() []string {
	var names []string
	for line := range strings.Lines(smokeList) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			names = append(names, line)
		}
	}
	return names
}

// passes returns the passes of a set: first the specs that may run in parallel, then the others.
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
		return nil, fmt.Errorf("%w: the smoke set cannot be combined with -focus", errUsage)
	case o.set == setSmoke:
		for _, name := range smokeSpecs() {
			focus = append(focus, suite.Exactly(name))
		}
		if len(focus) == 0 {
			return nil, errors.New("the smoke set is empty")
		}
	case o.set == setStorage && len(focus) == 0:
		focus = []string{storageSpecs}
	}
	labels += " && " + leftOut
	pass := func(name, which string, procs int) suite.Pass {
		return suite.Pass{Name: name, Labels: labels + " && " + which, Focus: focus, Procs: procs, Limit: passLimit, Skip: []string{twoNodes, foreignImages}}
	}
	parallel := pass("parallel", "!"+alone, o.procs)
	if o.set == setSmoke {
		return []suite.Pass{parallel}, nil
	}
	return []suite.Pass{parallel, pass("serial", alone, 1)}, nil
}
