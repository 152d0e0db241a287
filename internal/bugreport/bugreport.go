// Package bugreport collects what a maintainer needs to understand a problem with a node, in one archive without secrets.
//
// The archive has fixed file names (docs/report.md). It is made of parts, which are collected in parallel, each with its own time limit.
// A part that fails or does not end is noted in the archive, so that a report is possible for a running, stopped, broken or frozen node.
//
// Runs in: parent.
package bugreport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/internal/redact"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// Node is the part of node.Node that a report uses.
type Node interface {
	Config() *config.NodeConfig
	Kubeconfig() string
	Check(ctx context.Context) ([]preflight.Finding, error)
	Status(ctx context.Context) (*status.Status, error)
	Events(ctx context.Context, follow bool, fn func(status.Event) error) error
}

// Input is the subject of a report.
type Input struct {
	// Name is the name of the node, and Version that of this program.
	Name, Version string
	// Node is nil if the node's state is so damaged that there is no handle for it; Fault is the reason.
	Node  Node
	Fault error
	// Runtime and Data are where the node's files are expected. Registry is the node's entry in the account's registry.
	Runtime  layout.Runtime
	Data     layout.Data
	Registry string
	// Env is the environment of the caller, KEY=VALUE. Home is the account's home directory.
	Env  []string
	Home string
	// Now is the time of the report.
	Now time.Time
}

// cfg returns the node's config, or the default one.
func (in *Input) cfg() *config.NodeConfig {
	if in.Node == nil {
		return config.Default()
	}
	return in.Node.Config()
}

// file is a file of the archive. Its name is relative to the archive's directory.
type file struct{ name, text string }

// part is a part of a report.
type part struct {
	name    string
	collect func(ctx context.Context, in *Input) ([]file, error)
}

// parts returns the parts in the order of the archive.
func parts() []part {
	return []part{
		{"versions", versions},
		{"config", effectiveConfig},
		{"check", check},
		{"status", nodeStatus},
		{"events", events},
		{"state", stateFiles},
		{"certificates", certificates},
		{"directories", directories},
		{"logs", logs},
		{"cgroup", cgroup},
		{"mounts", mounts},
		{"network", network},
		{"cluster", cluster},
		{"kernel", kernel},
		{"account", account},
	}
}

// limits are the bounds of a report.
type limits struct {
	// part is the time for one part.
	part time.Duration
	// file is the maximum size of one file, and log that of the excerpt of a log, in bytes.
	file, log int
}

var defaultLimits = limits{part: 10 * time.Second, file: 1 << 20, log: maxLog}

// maxLog is the size of the excerpt of each log in bytes.
const maxLog = 256 << 10

// PartResult is the result of one part.
type PartResult struct {
	Name string `json:"name"`
	// Files are the names of the part's files. Cut lists those of which only the beginning is in the archive.
	Files []string `json:"files,omitempty"`
	Cut   []string `json:"cut,omitempty"`
	Error string   `json:"error,omitempty"`
}

// Summary is the content of report.json.
type Summary struct {
	Format  int          `json:"format"`
	Name    string       `json:"name"`
	Version string       `json:"version"`
	Created time.Time    `json:"created"`
	Parts   []PartResult `json:"parts"`
	// Warnings are about the removal of secrets.
	Warnings []string `json:"warnings,omitempty"`
}

// summaryFormat is the version of the archive.
const summaryFormat = 1

// Write collects a report and writes it as a gzip-compressed tar archive. It returns an error only if it cannot write; faults of parts are
// in the summary.
func Write(ctx context.Context, w io.Writer, in Input) (*Summary, error) {
	return write(ctx, w, in, parts(), defaultLimits)
}

func write(ctx context.Context, w io.Writer, in Input, parts []part, l limits) (*Summary, error) {
	secrets := []part{{"stored secrets", storedSecrets}, {"secrets of the cluster", clusterSecrets}}
	results := collect(ctx, &in, append(secrets, parts...), l)
	s := &Summary{Format: summaryFormat, Name: in.Name, Version: in.Version, Created: in.Now.UTC()}
	var known []string
	for i, p := range secrets {
		if err := results[i].err; err != nil {
			s.Warnings = append(s.Warnings, fmt.Sprintf("%s are removed only where they are recognized by their form: %v", p.name, err))
		}
		known = append(known, texts(results[i].files)...)
	}
	results = results[len(secrets):]
	r := redact.New(known...)
	a := newArchive(w, in)
	for i, p := range parts {
		got := results[i]
		res := PartResult{Name: p.name}
		if got.err != nil {
			res.Error = r.Text(got.err.Error())
		}
		for _, f := range got.files {
			text, cut := limit(r.Text(strings.ToValidUTF8(f.text, "\uFFFD")), l.file)
			if cut {
				res.Cut = append(res.Cut, f.name)
			}
			res.Files = append(res.Files, f.name)
			a.add(r.Text(f.name), text)
		}
		s.Parts = append(s.Parts, res)
	}
	a.add("report.json", jsonText(s))
	return s, a.close()
}

// texts returns the contents of files.
func texts(files []file) []string {
	all := make([]string, len(files))
	for i, f := range files {
		all[i] = f.text
	}
	return all
}

// collected is the result of a part.
type collected struct {
	files []file
	err   error
}

// errUnfinished is the cause of a part's context when its time is over.
var errUnfinished = errors.New("time limit exceeded")

// collect runs all parts in parallel. It abandons parts that ignore the end of their context, for example because a file system does not
// respond.
func collect(ctx context.Context, in *Input, parts []part, l limits) []collected {
	results := make([]collected, len(parts))
	var all sync.WaitGroup
	for i, p := range parts {
		all.Go(func() {
			ctx, cancel := context.WithTimeoutCause(ctx, l.part, errUnfinished)
			defer cancel()
			done := make(chan collected, 1)
			go func() {
				defer func() {
					if v := recover(); v != nil { // damaged state must not prevent the report
						done <- collected{err: fmt.Errorf("panic: %v", v)}
					}
				}()
				files, err := p.collect(ctx, in)
				done <- collected{files, err}
			}()
			select {
			case results[i] = <-done:
				return
			case <-ctx.Done():
			}
			grace := time.NewTimer(l.part / 10) // for parts that return what they have
			defer grace.Stop()
			select {
			case results[i] = <-done:
			case <-grace.C:
				results[i].err = fmt.Errorf("not finished: %w", context.Cause(ctx))
			}
		})
	}
	all.Wait()
	return results
}

// limit returns the beginning of text, up to a number of bytes. cut is set if it is not all of text.
func limit(text string, most int) (short string, cut bool) {
	if len(text) <= most {
		return text, false
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "\n[cut]\n", true
}
