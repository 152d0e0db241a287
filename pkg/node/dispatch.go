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
	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/descriptors"
	"github.com/rootlessnode/rootlessnode/internal/journal"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/noderole"
	"github.com/rootlessnode/rootlessnode/pkg/child"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/parent"
)

// Dispatch runs the internal roles of a node. Every program that uses this package must call it first in main, before it reads
// flags, opens files or starts goroutines. A node consists of several processes that execute the program that starts it. Dispatch
// reads from the environment whether this process is one of them. If so, it runs that role and exits the process. Otherwise it
// returns immediately and changes nothing.
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

// role returns the function of the role that the environment selects, or nil in the host program itself.
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
		return func(*logrus.Logger) error { return noderole.RunMounts() }
	}
	return nil
}

// helperInput is the JSON that a helper process reads from its config descriptor.
type helperInput struct {
	Config     *config.NodeConfig `json:"config"`
	RuntimeDir string             `json:"runtimeDir"`
	// DataCertain is set if the data belongs to the node even without a record.
	DataCertain bool `json:"dataCertain,omitempty"`
}

// helperReport is the JSON that a helper process writes to its report descriptor.
type helperReport struct {
	Error   *errdefs.Report `json:"error,omitempty"`
	Removed *datadir.Result `json:"removed,omitempty"`
}

// runParent runs the parent role in a helper process.
func runParent(log *logrus.Logger) error {
	err := closeForeign()
	report := inheritedFile(layout.EnvReport)
	var in helperInput
	if err == nil {
		in, err = readInput()
	}
	if err == nil {
		setLevel(log, in.Config)
		err = parent.Run(context.Background(), parent.Options{
			Config: in.Config, Runtime: layout.Runtime{Dir: in.RuntimeDir}, Log: log, Lifeline: inheritedFile(layout.EnvLifeline),
		})
	}
	return writeReport(report, helperReport{}, err)
}

// runRemove removes the data of a node in a helper process.
func runRemove(log *logrus.Logger) error {
	err := closeForeign()
	report := inheritedFile(layout.EnvReport)
	var in helperInput
	if err == nil {
		in, err = readInput()
	}
	var r helperReport
	if err == nil {
		r.Removed, err = parent.RemoveData(in.Config, layout.Runtime{Dir: in.RuntimeDir}, in.DataCertain)
	}
	return writeReport(report, r, err)
}

func setLevel(log *logrus.Logger, cfg *config.NodeConfig) {
	if level, err := logrus.ParseLevel(cfg.LogLevel); err == nil {
		log.SetLevel(level)
	}
}

func readInput() (helperInput, error) {
	var in helperInput
	f := inheritedFile(layout.EnvConfigFD)
	if f == nil {
		return in, errors.New("read the config: this role cannot be started manually")
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

// closeForeign closes the descriptors that the host program inherited from its own caller, such as pipes of a shell. Otherwise the
// node's processes would inherit them, and readers of those pipes would wait until the node ends. It keeps the standard streams
// and the descriptors that the environment names.
func closeForeign() error {
	var keep []int
	for _, key := range []string{layout.EnvConfigFD, layout.EnvReport, layout.EnvLifeline} {
		if fd, err := strconv.Atoi(os.Getenv(key)); err == nil {
			keep = append(keep, fd)
		}
	}
	return descriptors.CloseInherited(keep...)
}

// inheritedFile returns the descriptor that an environment key names, and sets it to close on exec. It returns nil if the key is
// not set.
func inheritedFile(key string) *os.File {
	fd, err := strconv.Atoi(os.Getenv(key))
	if err != nil {
		return nil
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), key)
}

// writeReport writes the result of a helper process to report for the process that started it, and returns err.
func writeReport(report *os.File, r helperReport, err error) error {
	if report == nil {
		return err
	}
	r.Error = errdefs.ReportOf(err)
	_ = json.NewEncoder(report).Encode(r) // fails if the host program no longer reads
	_ = report.Close()
	return err
}
