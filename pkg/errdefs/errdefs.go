// Package errdefs attaches data to errors: a class, which decides the exit code; hints, which are instructions or commands that
// fix the error; and the log of the component that failed. The package prints nothing and does not exit the process;
// cmd/rootlessnode does both.
//
// Test for a class with errors.Is. Config, Preflight and the others create an error of a class, to which steps are added:
//
//	return errdefs.Config("remove forward %s: not found", text).Do(errdefs.ListForwards)
//
// Class, WithSteps and WithHint extend an existing error. ReportOf converts an error to a Report, which can be encoded as JSON,
// and Report.Err converts it back, so that class, hints and log survive between processes.
//
// A hint is data: actions of rootlessnode with arguments (Step), and text about the host. A program that embeds a node renders the
// actions in its own words with Report.Render; without it, Report.Hints has plain words.
//
// Runs in: parent, child or either. It does not access the host.
package errdefs

import (
	"errors"
	"fmt"
	"slices"
)

// Exit codes of the command line. They are part of the documented interface. ExitOther is for errors without a class and for the
// classes that do not have an exit code of their own.
const (
	ExitOK        = 0
	ExitOther     = 1
	ExitConfig    = 2
	ExitPreflight = 3
	ExitComponent = 4
	ExitTimeout   = 5
)

// Classes of errors. Test for a class with errors.Is; attach one with Class.
var (
	// ErrConfig is the class of invalid user input: flags, environment variables, the config file. Exit code 2.
	ErrConfig = errors.New("configuration")
	// ErrPreflight is the class of unmet host requirements. Exit code 3.
	ErrPreflight = errors.New("preflight")
	// ErrComponent is the class of components that fail to start or that stopped unexpectedly. Exit code 4.
	ErrComponent = errors.New("component")
	// ErrTimeout is the class of operations that did not finish before their time limit. Exit code 5.
	ErrTimeout = errors.New("not ready in time")
	// ErrNotRunning is the class of operations that need a running node when it is not running. Exit code 1.
	ErrNotRunning = errors.New("node is not running")
	// ErrAlreadyRunning is the class of attempts to start a node that is already running. Exit code 1.
	ErrAlreadyRunning = errors.New("node is already running")
)

// Error is an error with a class and a hint. The functions named like the classes return it; Hint, Do and With extend it.
type Error struct {
	err, class error
	hint       Hint
}

func (e *Error) Error() string { return e.err.Error() }

func (e *Error) Unwrap() []error {
	if e.class == nil {
		return []error{e.err}
	}
	return []error{e.err, e.class}
}

// Hint adds steps that are not actions to the hint and returns e. See Step.Text.
func (e *Error) Hint(lines ...string) *Error { return e.With(Text(lines...)) }

// Hintf adds a step whose text is that of fmt.Sprintf. See Hint.
func (e *Error) Hintf(format string, args ...any) *Error {
	return e.With(Text(fmt.Sprintf(format, args...)))
}

// Do adds an action to the hint and returns e.
func (e *Error) Do(action Action, args ...string) *Error { return e.With(Do(action, args...)) }

// With adds steps to the hint and returns e.
func (e *Error) With(h Hint) *Error {
	e.hint = append(e.hint, h...)
	return e
}

// Errorf returns an error without a class. The text is that of fmt.Errorf; %w wraps an error.
func Errorf(format string, args ...any) *Error { return &Error{err: fmt.Errorf(format, args...)} }

func classf(class error, format string, args []any) *Error {
	return &Error{err: fmt.Errorf(format, args...), class: class}
}

// Config returns an error of class ErrConfig. The text is that of fmt.Errorf; %w wraps an error.
func Config(format string, args ...any) *Error { return classf(ErrConfig, format, args) }

// Preflight returns an error of class ErrPreflight. See Config.
func Preflight(format string, args ...any) *Error { return classf(ErrPreflight, format, args) }

// Component returns an error of class ErrComponent. See Config.
func Component(format string, args ...any) *Error { return classf(ErrComponent, format, args) }

// Timeout returns an error of class ErrTimeout. See Config.
func Timeout(format string, args ...any) *Error { return classf(ErrTimeout, format, args) }

// NotRunning returns an error of class ErrNotRunning. See Config.
func NotRunning(format string, args ...any) *Error { return classf(ErrNotRunning, format, args) }

// AlreadyRunning returns an error of class ErrAlreadyRunning. See Config.
func AlreadyRunning(format string, args ...any) *Error {
	return classf(ErrAlreadyRunning, format, args)
}

// Class adds class to err without changing the text of err. It returns nil if err is nil.
func Class(class, err error) error {
	if err == nil {
		return nil
	}
	return &Error{err: err, class: class}
}

// WithSteps attaches a hint to err. It returns nil if err is nil, and err unchanged if the hint is empty.
func WithSteps(err error, h Hint) error {
	if err == nil || len(h) == 0 {
		return err
	}
	return &Error{err: err, hint: h}
}

// WithHint attaches a hint that has no actions to err. See WithSteps and Step.Text.
func WithHint(err error, text string) error {
	if text == "" {
		return err
	}
	return WithSteps(err, Text(text))
}

type logged struct {
	err       error
	component string
	path      string
	tail      []string
}

func (e *logged) Error() string { return e.err.Error() }
func (e *logged) Unwrap() error { return e.err }

// WithLog attaches the name of the component that caused err, the path of its log file and the last lines of that file. It returns
// nil if err is nil.
func WithLog(err error, component, path string, tail []string) error {
	if err == nil {
		return nil
	}
	return &logged{err: err, component: component, path: path, tail: tail}
}

// Report is the serializable form of an error. It is printed as JSON and sent between processes.
type Report struct {
	// Code is the exit code of the error's class.
	Code int `json:"code"`
	// Message is the text of the error.
	Message string `json:"message"`
	// Hints are the attached hints without duplicates, those of the outermost error first, in plain words. Steps are the same hints
	// as data; a report from a version without them has none. Render replaces the words.
	Hints []string `json:"hints,omitempty"`
	Steps []Hint   `json:"steps,omitempty"`
	// Component is the component that failed, LogPath its log file (a path on the host) and LogTail the last lines of that file.
	Component string   `json:"component,omitempty"`
	LogPath   string   `json:"logPath,omitempty"`
	LogTail   []string `json:"logTail,omitempty"`
}

// ReportOf returns the report of err with everything that is attached to it, or nil if err is nil.
func ReportOf(err error) *Report {
	if err == nil {
		return nil
	}
	r := &Report{Code: ExitCode(err), Message: err.Error()}
	walk(err, func(e error) {
		switch v := e.(type) { //nolint:errorlint // walk visits each wrapped error itself
		case *Error:
			r.add(v.hint)
		case *logged:
			if r.Component == "" {
				r.Component, r.LogPath, r.LogTail = v.component, v.path, v.tail
			}
		case *reported:
			for i, text := range v.r.Hints {
				if i < len(v.r.Steps) {
					r.add(v.r.Steps[i])
				} else {
					r.add(Text(text))
				}
			}
			if r.Component == "" {
				r.Component, r.LogPath, r.LogTail = v.r.Component, v.r.LogPath, v.r.LogTail
			}
		}
	})
	return r
}

// add adds a hint unless it is empty or a duplicate.
func (r *Report) add(h Hint) {
	if text := h.String(); text != "" && !slices.Contains(r.Hints, text) {
		r.Hints, r.Steps = append(r.Hints, text), append(r.Steps, h)
	}
}

// Render replaces the plain words in Hints by those of the caller, and removes Steps.
func (r *Report) Render(words func(Step) string) {
	for i, h := range r.Steps[:min(len(r.Steps), len(r.Hints))] {
		r.Hints[i] = h.Render(words)
	}
	r.Steps = nil
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

// Err returns an error with the text, class, hints and log of the report, which usually comes from another process. It returns nil
// if r is nil.
func (r *Report) Err() error {
	if r == nil {
		return nil
	}
	return &reported{r: *r}
}

// ExitCode returns the documented exit code for err: that of its class, ExitOther without a class, ExitOK if err is nil.
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
	switch v := err.(type) { //nolint:errorlint // this function does the unwrapping
	case interface{ Unwrap() error }:
		walk(v.Unwrap(), visit)
	case interface{ Unwrap() []error }:
		for _, e := range v.Unwrap() {
			walk(e, visit)
		}
	}
}
