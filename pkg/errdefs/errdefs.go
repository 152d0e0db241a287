// Package errdefs holds what every error of rootlessnode can carry besides its text: a class, which decides the exit
// code, and a hint, which tells the user the way out. It prints nothing and exits nowhere; cmd/rootlessnode does both.
//
// Runs in: parent, child or either. It reads nothing of the host.
package errdefs

import (
	"errors"
	"fmt"
)

// Exit codes of the command line, one for each class. They are part of the documented interface.
const (
	ExitOK        = 0
	ExitOther     = 1
	ExitConfig    = 2
	ExitPreflight = 3
	ExitComponent = 4
	ExitTimeout   = 5
)

// Classes. Test for one with errors.Is; attach one with Class.
var (
	// ErrConfig: what the user wrote (flags, environment, config file) cannot be used.
	ErrConfig = errors.New("configuration")
	// ErrPreflight: the host lacks something that the node needs.
	ErrPreflight = errors.New("preflight")
	// ErrComponent: a component of the node does not start or does not stay up.
	ErrComponent = errors.New("component")
	// ErrTimeout: the node, or a step of it, was not ready in the time given.
	ErrTimeout = errors.New("not ready in time")
	// ErrNotRunning: the node that was asked for does not run. Exit code 1.
	ErrNotRunning = errors.New("node is not running")
	// ErrAlreadyRunning: a node of that name runs already. Exit code 1.
	ErrAlreadyRunning = errors.New("node is already running")
)

type classed struct {
	class error
	err   error
}

func (e *classed) Error() string   { return e.err.Error() }
func (e *classed) Unwrap() []error { return []error{e.err, e.class} }

// Class marks err as belonging to class without changing its text. A nil err stays nil.
func Class(class, err error) error {
	if err == nil {
		return nil
	}
	return &classed{class: class, err: err}
}

type hinted struct {
	err  error
	hint string
}

func (e *hinted) Error() string { return e.err.Error() }
func (e *hinted) Unwrap() error { return e.err }

// WithHint attaches the way out to err: text or commands that a user can paste. A nil err stays nil; an empty hint
// changes nothing.
func WithHint(err error, hint string) error {
	if err == nil || hint == "" {
		return err
	}
	return &hinted{err: err, hint: hint}
}

// WithHintf is WithHint with formatting.
func WithHintf(err error, format string, args ...any) error {
	return WithHint(err, fmt.Sprintf(format, args...))
}

type logged struct {
	err       error
	component string
	path      string
	tail      []string
}

func (e *logged) Error() string { return e.err.Error() }
func (e *logged) Unwrap() error { return e.err }

// WithLog attaches the component whose fault err is, its log file and the last lines of it. A nil err stays nil.
func WithLog(err error, component, path string, tail []string) error {
	if err == nil {
		return nil
	}
	return &logged{err: err, component: component, path: path, tail: tail}
}

// Report is what can be told of an error: the form in which it is printed as JSON and sent between processes.
type Report struct {
	// Code is the exit code of its class.
	Code int `json:"code"`
	// Message is the error's text.
	Message string `json:"message"`
	// Hints are the ways out, in the order in which they were found, each once.
	Hints []string `json:"hints,omitempty"`
	// Component, LogPath and LogTail name the component at fault, its log file (a path on the host) and its last lines.
	Component string   `json:"component,omitempty"`
	LogPath   string   `json:"logPath,omitempty"`
	LogTail   []string `json:"logTail,omitempty"`
}

// ReportOf takes err apart. It returns nil for a nil err.
func ReportOf(err error) *Report {
	if err == nil {
		return nil
	}
	r := &Report{Code: ExitCode(err), Message: err.Error()}
	walk(err, func(e error) {
		switch v := e.(type) { //nolint:errorlint // walk comes by each wrapped error itself
		case *hinted:
			for _, h := range r.Hints {
				if h == v.hint {
					return
				}
			}
			r.Hints = append(r.Hints, v.hint)
		case *logged:
			if r.Component == "" {
				r.Component, r.LogPath, r.LogTail = v.component, v.path, v.tail
			}
		case *reported:
			r.Hints = append(r.Hints, v.r.Hints...)
			if r.Component == "" {
				r.Component, r.LogPath, r.LogTail = v.r.Component, v.r.LogPath, v.r.LogTail
			}
		}
	})
	return r
}

type reported struct{ r Report }

func (e *reported) Error() string { return e.r.Message }
func (e *reported) Is(target error) bool {
	switch e.r.Code {
	case ExitConfig:
		return target == ErrConfig
	case ExitPreflight:
		return target == ErrPreflight
	case ExitComponent:
		return target == ErrComponent
	case ExitTimeout:
		return target == ErrTimeout
	}
	return false
}

// Err turns a report that came from another process back into an error of the same class, hints and log. A nil report
// gives a nil error.
func (r *Report) Err() error {
	if r == nil {
		return nil
	}
	return &reported{r: *r}
}

// ExitCode returns the documented exit code for err; 0 for nil.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, ErrConfig):
		return ExitConfig
	case errors.Is(err, ErrPreflight):
		return ExitPreflight
	case errors.Is(err, ErrComponent):
		return ExitComponent
	case errors.Is(err, ErrTimeout):
		return ExitTimeout
	}
	return ExitOther
}

func walk(err error, visit func(error)) {
	if err == nil {
		return
	}
	visit(err)
	switch v := err.(type) { //nolint:errorlint // this is what unwraps
	case interface{ Unwrap() error }:
		walk(v.Unwrap(), visit)
	case interface{ Unwrap() []error }:
		for _, e := range v.Unwrap() {
			walk(e, visit)
		}
	}
}
