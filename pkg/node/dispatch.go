package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/descriptors"
	"github.com/rootlessnode/rootlessnode/internal/journal"
	"github.com/rootlessnode/rootlessnode/pkg/child"
	"github.com/rootlessnode/rootlessnode/pkg/datadir"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/parent"
)

// Dispatch must be the first thing that main does in every program that uses this package, before it reads flags, opens
// files or starts goroutines. A node consists of several executions of the program that starts it; Dispatch tells from
// the environment whether this is one of them. If so it plays that role and ends the process. If not it returns at once
// and has changed nothing.
//
// Runs in: parent, child or either.
func Dispatch() {
	role := role()
	if role == nil {
		return
	}
	log := logrus.New()
	log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, DisableColors: true})
	journal.Attach(log)
	err := role(log)
	if err != nil {
		log.Error(err)
	}
	os.Exit(errdefs.ExitCode(err))
}

// role returns what this execution is to do; nil if it is the host program itself.
func role() func(*logrus.Logger) error {
	env := os.Getenv
	removing := env(layout.EnvRemove) != ""
	switch {
	case env(layout.EnvPipeFD) != "" && removing:
		return func(*logrus.Logger) error { return child.RunRemove() }
	case env(layout.EnvPipeFD) != "":
		return func(log *logrus.Logger) error { return child.Run(log) }
	case env(layout.EnvActivationHelper) != "":
		return func(*logrus.Logger) error { return child.RunActivationHelper() }
	}
	switch env(layout.EnvRole) {
	case layout.RoleParent:
		return runParent
	case layout.RoleNode:
		return func(log *logrus.Logger) error { return child.RunNode(log, Version) }
	case layout.RoleGuard:
		return func(log *logrus.Logger) error { return parent.RunGuard(log) }
	case layout.RoleRemove:
		return runRemove
	case layout.RoleRemoveInside:
		return func(*logrus.Logger) error { return child.RemoveInside() }
	case layout.RoleMounts:
		return func(*logrus.Logger) error { return child.RunMounts() }
	}
	return nil
}

// helperInput is what a helper process reads from its config descriptor.
type helperInput struct {
	Config     *config.NodeConfig `json:"config"`
	RuntimeDir string             `json:"runtimeDir"`
	// DataCertain: the data is the node's even if it has no record.
	DataCertain bool `json:"dataCertain,omitempty"`
}

// helperReport is what a helper process writes to its report descriptor.
type helperReport struct {
	Error   *errdefs.Report `json:"error,omitempty"`
	Removed *datadir.Result `json:"removed,omitempty"`
}

// runParent is the parent role in a process of its own.
func runParent(log *logrus.Logger) error {
	err := dropForeign()
	report := inherited(layout.EnvReport)
	var in helperInput
	if err == nil {
		in, err = readInput()
	}
	if err == nil {
		setLevel(log, in.Config)
		err = parent.Run(context.Background(), parent.Options{
			Config: in.Config, Runtime: layout.Runtime{Dir: in.RuntimeDir}, Log: log, Lifeline: inherited(layout.EnvLifeline),
		})
	}
	return tell(report, helperReport{}, err)
}

// runRemove removes the data of a node in a process of its own.
func runRemove(log *logrus.Logger) error {
	err := dropForeign()
	report := inherited(layout.EnvReport)
	var in helperInput
	if err == nil {
		in, err = readInput()
	}
	var r helperReport
	if err == nil {
		r.Removed, err = parent.RemoveData(in.Config, layout.Runtime{Dir: in.RuntimeDir}, in.DataCertain)
	}
	return tell(report, r, err)
}

func setLevel(log *logrus.Logger, cfg *config.NodeConfig) {
	if level, err := logrus.ParseLevel(cfg.LogLevel); err == nil {
		log.SetLevel(level)
	}
}

func readInput() (helperInput, error) {
	var in helperInput
	f := inherited(layout.EnvConfigFD)
	if f == nil {
		return in, errors.New("read the config: this role is not for starting by hand")
	}
	b, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return in, fmt.Errorf("read the config: %w", err)
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return in, fmt.Errorf("decode the config: %w", err)
	}
	return in, nil
}

// dropForeign closes what this process inherited from the caller of the program that started it, such as the pipes of a
// shell, so that neither the node's processes get it nor its other end waits for the node's end. The standard streams and
// what was passed on purpose stay.
func dropForeign() error {
	var keep []int
	for _, key := range []string{layout.EnvConfigFD, layout.EnvReport, layout.EnvLifeline} {
		if fd, err := strconv.Atoi(os.Getenv(key)); err == nil {
			keep = append(keep, fd)
		}
	}
	return descriptors.CloseInherited(keep...)
}

// inherited returns the descriptor that an environment key names, and keeps it from our own children.
func inherited(key string) *os.File {
	fd, err := strconv.Atoi(os.Getenv(key))
	if err != nil {
		return nil
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), key)
}

// tell writes the way a helper ended for whoever started it, and passes it on. Nobody may be listening any more.
func tell(report *os.File, r helperReport, err error) error {
	if report == nil {
		return err
	}
	r.Error = errdefs.ReportOf(err)
	_ = json.NewEncoder(report).Encode(r) // a closed pipe: the starter has gone its way
	_ = report.Close()
	return err
}
