package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// script is a recipe for tests: a shell script with the output file in $out.
type script string

func (script) tools() toolset { return toolset{} }
func (s script) command(in inputs) command {
	return command{args: []string{"sh", "-c", string(s)}, env: []string{"out=" + in.output, "dir=" + in.outDir}}
}

// site is a directory for test builds. It logs the order in which targets are built.
type site struct {
	components, out string
	all             []target
}

func newSite(t *testing.T, all ...target) site {
	t.Helper()
	s := site{filepath.Join(t.TempDir(), "components"), t.TempDir(), all}
	for _, x := range all {
		s.source(t, x.module, "main.go", "package main")
	}
	return s
}

func (s site) source(t *testing.T, module, name, text string) {
	t.Helper()
	path := filepath.Join(s.components, module, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func (s site) builder(t *testing.T) *builder {
	t.Helper()
	b, err := newBuilder(s.all, s.components, s.out, toolchain{}, &progress{w: io.Discard, now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (s site) build(t *testing.T, names ...string) error {
	t.Helper()
	chosen, err := choose(s.all, names)
	if err != nil {
		t.Fatal(err)
	}
	return s.builder(t).run(context.Background(), chosen, 2)
}

func (s site) stale(t *testing.T) []string {
	t.Helper()
	stale, err := s.builder(t).stale(s.all)
	if err != nil {
		t.Fatal(err)
	}
	return names(stale)
}

func part() target {
	return target{name: "part", module: "part", group: "part", version: "1", output: private + "/part", recipe: script(`echo part >"$out"`)}
}

func whole() target {
	return target{name: "whole", module: "whole", group: "whole", version: "1.2", output: images + "/whole.tar", image: "example.org/whole:{version}",
		needs: []string{"part"}, recipe: script(`cat "$dir/.stamps/parts/part" >"$out"`)}
}

func multi() target {
	return target{name: "multi", module: "multi", group: "multi", version: "v3", output: bin + "/multi", programs: []string{"one", "two"},
		recipe: script(`echo multi >"$out"`)}
}

func TestBuildThenNothingToDo(t *testing.T) {
	s := newSite(t, whole(), multi(), part()) // the needed target is last on purpose
	if err := s.build(t); err != nil {
		t.Fatal(err)
	}
	if stale := s.stale(t); stale != nil {
		t.Errorf("stale after a build: %q", stale)
	}
	data, err := os.ReadFile(filepath.Join(s.out, images, "whole.tar"))
	if err != nil || string(data) != "part\n" {
		t.Errorf("whole.tar: %q, %v", data, err)
	}
	if to, err := os.Readlink(filepath.Join(s.out, bin, "two")); err != nil || to != "multi" {
		t.Errorf("link two: %q, %v", to, err)
	}

	var m manifest
	data, err = os.ReadFile(filepath.Join(s.out, bin, "manifest.json"))
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	if m.Schema != 1 || len(m.Components) != 2 || len(m.Images) != 1 {
		t.Fatalf("manifest: %+v", m)
	}
	if c := m.Components[1]; c.Name != "two" || c.Path != "multi" || c.Version != "v3" || c.Size != 6 || len(c.SHA256) != 64 {
		t.Errorf("component: %+v", c)
	}
	if i := m.Images[0]; i.Name != "example.org/whole:1.2" || i.Path != "../../share/rootlessnode/images/whole.tar" {
		t.Errorf("image: %+v", i)
	}
}

// TestSideBySide builds an older version of a target, which has its own directory, links and manifest.
func TestSideBySide(t *testing.T) {
	older := multi()
	older.name, older.modFile, older.side, older.onRequest = "multi-1", "go-1.mod", "multi-1", true
	older.output = bin + "/multi-1/multi"
	s := newSite(t, multi(), older)
	if err := s.build(t); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(s.out, bin, "multi-1")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("built without a request: %v", err)
	}
	if err := s.build(t, "multi-1"); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{bin, bin + "/multi-1"} {
		if to, err := os.Readlink(filepath.Join(s.out, dir, "two")); err != nil || to != "multi" {
			t.Errorf("%s: link two: %q, %v", dir, to, err)
		}
		var m manifest
		data, err := os.ReadFile(filepath.Join(s.out, dir, "manifest.json"))
		if err == nil {
			err = json.Unmarshal(data, &m)
		}
		if err != nil || len(m.Components) != 2 || m.Components[0].Path != "multi" {
			t.Errorf("%s: manifest %+v, %v", dir, m, err)
		}
	}
	s.source(t, "multi", "go-1.mod", "x")
	if got := s.stale(t); !slices.Equal(got, []string{"multi-1"}) {
		t.Errorf("stale: %q, want only the older version", got)
	}
}

func TestStale(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, s *site)
		want   []string
	}{
		"a source of a part": {func(t *testing.T, s *site) { s.source(t, "part", "main.go", "package other") }, []string{"part", "whole"}},
		"a new go.sum":       {func(t *testing.T, s *site) { s.source(t, "multi", "go.sum", "x") }, []string{"multi"}},
		"another version":    {func(t *testing.T, s *site) { s.source(t, "multi", "go-1.sum", "x") }, nil},
		"a test":             {func(t *testing.T, s *site) { s.source(t, "multi", "main_test.go", "x") }, nil},
		"a flag":             {func(_ *testing.T, s *site) { s.all[2].recipe = script(`echo else >"$out"`) }, []string{"multi"}},
		"a version":          {func(_ *testing.T, s *site) { s.all[2].version = "v4" }, []string{"multi"}},
		"an output edited":   {func(t *testing.T, s *site) { edit(t, filepath.Join(s.out, bin, "multi"), "MULTI\n") }, []string{"multi"}},
		"an output removed":  {func(t *testing.T, s *site) { remove(t, filepath.Join(s.out, bin, "multi")) }, []string{"multi"}},
		"an output touched":  {func(t *testing.T, s *site) { edit(t, filepath.Join(s.out, bin, "multi"), "multi\n") }, nil},
		"a corrupt stamp":    {func(t *testing.T, s *site) { edit(t, filepath.Join(s.out, ".stamps", "multi.json"), "{") }, []string{"multi"}},
		"the checkout moved": {func(t *testing.T, s *site) { move(t, &s.components) }, nil},
		"the output moved":   {func(t *testing.T, s *site) { move(t, &s.out) }, nil},
		"nothing":            {func(*testing.T, *site) {}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, part(), whole(), multi())
			if err := s.build(t); err != nil {
				t.Fatal(err)
			}
			test.change(t, &s)
			if got := s.stale(t); !slices.Equal(got, test.want) {
				t.Errorf("stale: %q, want %q", got, test.want)
			}
		})
	}
}

func edit(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func move(t *testing.T, dir *string) {
	t.Helper()
	to := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(*dir, to); err != nil {
		t.Fatal(err)
	}
	*dir = to
}

func TestFailedBuildKeepsTheOldOutput(t *testing.T) {
	s := newSite(t, multi())
	if err := s.build(t); err != nil {
		t.Fatal(err)
	}
	s.all[0].recipe = script(`echo broken >"$out"; echo "why it broke" >&2; exit 3`)
	err := s.build(t)
	if err == nil || !strings.Contains(err.Error(), "why it broke") || !strings.Contains(err.Error(), "build multi") {
		t.Errorf("error: %v", err)
	}
	if data, err := os.ReadFile(filepath.Join(s.out, bin, "multi")); err != nil || string(data) != "multi\n" {
		t.Errorf("output: %q, %v", data, err)
	}
}

// Each target of the pair fails if the other is built at the same time.
func TestOneOfAGroupAtATime(t *testing.T) {
	pair := func(name string) target {
		return target{name: name, module: name, group: "pair", version: "1", output: bin + "/" + name,
			recipe: script(`mkdir "$dir/busy" && echo >"$out" && rmdir "$dir/busy"`)}
	}
	if err := newSite(t, pair("a"), pair("b")).build(t); err != nil {
		t.Error(err)
	}
}

func TestTooLargeIsRefused(t *testing.T) {
	x := multi()
	x.maxSize = 3
	s := newSite(t, x)
	if err := s.build(t); err == nil || !strings.Contains(err.Error(), "limit of 3") {
		t.Errorf("error: %v", err)
	}
	if _, err := os.Stat(filepath.Join(s.out, bin, "multi")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("output: %v", err)
	}
}

func TestWrongVersionIsRefused(t *testing.T) {
	x := multi()
	x.check, x.version = &check{args: []string{"--version"}, wants: []string{"v{version}"}}, "v2"
	x.recipe = script(`printf '#!/bin/sh\necho v1\n' >"$out"; chmod +x "$out"`)
	s := newSite(t, x)
	if err := s.build(t); err == nil || !strings.Contains(err.Error(), `"v2"`) {
		t.Errorf("error: %v", err)
	}
}

func TestCancelStopsTheCommand(t *testing.T) {
	s := newSite(t, target{name: "slow", module: "slow", version: "1", output: bin + "/slow",
		// The script reports through the pipe that it is running, and never ends.
		recipe: script(`echo started >"$dir/fifo"; exec tail -f /dev/null`)})
	fifo := filepath.Join(s.out, "fifo")
	if err := makeFIFO(fifo); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.builder(t).run(ctx, s.all, 1) }()
	if _, err := os.ReadFile(fifo); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
}

func TestProgressInAPipe(t *testing.T) {
	var out bytes.Buffer
	clock := time.Unix(0, 0)
	p := &progress{w: &out, now: func() time.Time { return clock }}
	p.begin(3, 1)
	p.start("kubernetes")
	p.compiled("kubernetes", 812)
	clock = clock.Add(95 * time.Second)
	if got, want := p.line(), "[0/1] 1m35s  kubernetes 1m35s (812 packages)"; got != want {
		t.Errorf("line: %q, want %q", got, want)
	}
	p.done("kubernetes", 95*time.Second, 198e6, nil)
	p.end(true)
	for _, want := range []string{"building 1 of 3", "kubernetes", "1m35s  198.0 MB", "built 1 in 1m35s"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("terminal codes in a pipe")
	}
}

func TestFollow(t *testing.T) {
	var last int
	tail := follow(strings.NewReader("internal/cpu\ngo: downloading x v1\n# pkg/x\npkg/x\nx.go:1:2: undefined: y"), func(n int) { last = n })
	if want := []string{"go: downloading x v1", "# pkg/x", "x.go:1:2: undefined: y"}; !slices.Equal(tail, want) || last != 2 {
		t.Errorf("tail %q, packages %d", tail, last)
	}
	if hint := hintFor("dial tcp 192.0.2.1:443: i/o timeout"); !strings.Contains(hint, "GOPROXY") {
		t.Errorf("hint: %q", hint)
	}
}
