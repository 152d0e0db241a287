package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/descriptors"
	"github.com/rootlessnode/rootlessnode/internal/hostexec"
	"github.com/rootlessnode/rootlessnode/internal/journal"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/noderole"
	"github.com/rootlessnode/rootlessnode/internal/registryauth"
	"github.com/rootlessnode/rootlessnode/internal/trial"
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
	name, rt := layout.TakeRole()
	role := roles()[name]
	if role == nil {
		return
	}
	log := logrus.New()
	log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, DisableColors: true})
	journal.Attach(log)
	err := role(log, rt)
	if err != nil {
		log.Error(err)
	}
	os.Exit(errdefs.ExitCode(err))
}

// roles returns the functions of the roles by name.
func roles() map[string]func(*logrus.Logger, layout.Runtime) error {
	return map[string]func(*logrus.Logger, layout.Runtime) error{
		layout.RoleParent: runParent,
		layout.RoleRemove: runRemove,
		layout.RoleGuard:  func(log *logrus.Logger, rt layout.Runtime) error { return parent.RunGuard(log, rt) },
		layout.RoleChild:  func(log *logrus.Logger, rt layout.Runtime) error { return child.Run(log, rt) },
		layout.RoleNode:   func(log *logrus.Logger, rt layout.Runtime) error { return child.RunNode(log, rt, Version) },
		layout.RoleMounts: func(*logrus.Logger, layout.Runtime) error { return noderole.RunMounts() },
		layout.RoleCredentials: func(_ *logrus.Logger, rt layout.Runtime) error {
			return registryauth.Plugin(rt.CredentialsSocket(), os.Stdin, os.Stdout)
		},
		layout.RoleRemoveChild:  func(_ *logrus.Logger, rt layout.Runtime) error { return child.RunRemove(rt) },
		layout.RoleTrial:        func(*logrus.Logger, layout.Runtime) error { return trial.Wait() },
		layout.RoleHold:         func(*logrus.Logger, layout.Runtime) error { return hostexec.Hold() },
		layout.RoleTrialInside:  func(*logrus.Logger, layout.Runtime) error { return trial.Do() },
		layout.RoleRemoveInside: func(_ *logrus.Logger, rt layout.Runtime) error { return child.RemoveInside(rt) },
	}
}

// Descriptors of a helper process, which exec.Cmd numbers from 3.
const (
	inputFD    = 3 // the helperInput
	reportFD   = 4 // for the helperReport
	lifelineFD = 5 // see parent.Options
)

// helperInput is the JSON that a helper process reads from its config descriptor.
type helperInput struct {
	Config     *config.NodeConfig `json:"config"`
	RuntimeDir string             `json:"runtimeDir"`
	// DataCertain is set if the data belongs to the node even without a record.
	DataCertain bool `json:"dataCertain,omitempty"`
	// TTL is parent.Options.TTL.
	TTL time.Duration `json:"ttl,omitempty"`
	// Lifeline is set if the helper stops at end of file of lifelineFD.
	Lifeline bool `json:"lifeline,omitempty"`
}

// helperReport is the JSON that a helper process writes to its report descriptor.
type helperReport struct {
	Error   *errdefs.Report `json:"error,omitempty"`
	Removed *datadir.Result `json:"removed,omitempty"`
}

// runParent runs the parent role in a helper process.
func runParent(log *logrus.Logger, _ layout.Runtime) error {
	return help(func(in helperInput, _ *helperReport) error {
		if level, err := logrus.ParseLevel(in.Config.LogLevel); err == nil {
			log.SetLevel(level)
		}
		o := parent.Options{Config: in.Config, Runtime: layout.Runtime{Dir: in.RuntimeDir}, Versions: versionsOf(in.Config), Log: log, TTL: in.TTL}
		if in.Lifeline {
			o.Lifeline = inheritedFile(lifelineFD)
		}
		return parent.Run(context.Background(), o)
	})
}

// runRemove removes the data of a node in a helper process.
func runRemove(*logrus.Logger, layout.Runtime) error {
	return help(func(in helperInput, r *helperReport) (err error) {
		r.Removed, err = parent.RemoveData(in.Config, layout.Runtime{Dir: in.RuntimeDir}, in.DataCertain)
		return err
	})
}

// help runs a role with the input from the host program and reports the result to it. It closes the descriptors that the host program
// inherited from its own caller, such as pipes of a shell, because their readers would wait until the node ends.
func help(role func(helperInput, *helperReport) error) error {
	err := descriptors.CloseInherited(inputFD, reportFD, lifelineFD)
	report := inheritedFile(reportFD)
	var in helperInput
	var r helperReport
	if err == nil {
		in, err = readInput()
	}
	if err == nil {
		err = role(in, &r)
	}
	if report != nil {
		r.Error = errdefs.ReportOf(err)
		_ = json.NewEncoder(report).Encode(r) // fails if the host program no longer reads
		_ = report.Close()
	}
	return err
}

func readInput() (in helperInput, err error) {
	f := inheritedFile(inputFD)
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

// inheritedFile returns an inherited descriptor and sets it to close on exec, or nil if this process did not inherit it.
func inheritedFile(fd int) *os.File {
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
		return nil
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), strconv.Itoa(fd))
}
