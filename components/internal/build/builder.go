package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// builder builds targets. Its methods are not safe for concurrent use, except
// make, which only reads it.
type builder struct {
	all           []target
	componentsDir string
	outDir        string
	toolchain     toolchain
	report        *progress

	stamps    map[string]stamp  // of the targets whose outputs exist
	versions  map[string]string // by target
	cVersions map[toolset]string
}

func newBuilder(all []target, componentsDir, outDir string, t toolchain, report *progress) (*builder, error) {
	b := &builder{
		all: all, componentsDir: componentsDir, outDir: outDir, toolchain: t, report: report,
		stamps: map[string]stamp{}, versions: map[string]string{}, cVersions: map[toolset]string{},
	}
	var errs []error
	for _, t := range all {
		version, err := b.readVersion(t)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t.name, err))
		}
		b.versions[t.name] = version
		// Without a readable stamp the target is built again.
		if s, err := readStamp(b.stampFile(t)); err == nil && s.holds(b.outputFile(t)) {
			b.stamps[t.name] = s
		}
	}
	return b, errors.Join(errs...)
}

func (b *builder) readVersion(t target) (string, error) {
	if t.upstream == "" {
		return t.version, nil
	}
	// The version of an image is that of the program's module, not of its own module.
	source := t
	for _, need := range t.needs {
		if n, ok := find(b.all, need); ok && n.upstream == t.upstream {
			source = n
		}
	}
	return b.required(source, t.upstream)
}

// programVersions returns the versions of the programs of t that have a module of their own.
func (b *builder) programVersions(t target) (map[string]string, error) {
	versions := map[string]string{}
	var errs []error
	for program, upstream := range t.modules {
		version, err := b.required(t, upstream)
		versions[program] = version
		errs = append(errs, err)
	}
	return versions, errors.Join(errs...)
}

// required returns the version of upstream that the module of t requires.
func (b *builder) required(t target, upstream string) (string, error) {
	gomod, err := os.ReadFile(filepath.Join(b.componentsDir, t.module, t.pins()))
	if err != nil {
		return "", err
	}
	return moduleVersion(string(gomod), upstream)
}

func (b *builder) outputFile(t target) string { return filepath.Join(b.outDir, t.output) }

// stateFile returns the path of a state file of t. Names of targets may contain a
// slash.
func (b *builder) stateFile(t target, dir, suffix string) string {
	return filepath.Join(b.outDir, ".stamps", dir, strings.ReplaceAll(t.name, "/", "-")+suffix)
}

func (b *builder) stampFile(t target) string { return b.stateFile(t, "", ".json") }

// key returns a digest of the inputs of t. It does not depend on paths, so that
// targets are still up to date in a checkout that was moved.
func (b *builder) key(t target) (string, error) {
	anywhere := b.toolchain
	anywhere.goCommand = "go"
	c := t.recipe.command(inputs{
		toolchain: anywhere, moduleDir: "MODULE", outDir: "OUT", output: "OUTPUT",
		version: b.versions[t.name], image: expand(t.image, b.versions[t.name]),
	})
	need := t.recipe.tools()
	if _, ok := b.cVersions[need]; !ok {
		b.cVersions[need] = b.toolchain.cVersions(need)
	}
	parts := append(c.args, c.env...)
	parts = append(parts, fmt.Sprintf("%+v", anywhere), b.cVersions[need], b.versions[t.name])
	for _, n := range t.needs {
		parts = append(parts, n, b.stamps[n].SHA256)
	}
	return keyOf(parts, filepath.Join(b.componentsDir, t.module), t.pins())
}

// stale returns those of the chosen targets that have to be built.
func (b *builder) stale(chosen []target) ([]target, error) {
	var stale []target
	for _, t := range chosen {
		key, err := b.key(t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.name, err)
		}
		fresh := b.stamps[t.name].Key == key
		for _, need := range t.needs {
			if _, again := find(stale, need); again {
				fresh = false
			}
		}
		if !fresh {
			stale = append(stale, t)
		}
	}
	return stale, nil
}

// run builds the stale targets among the chosen ones, and then creates the links
// and the manifest for all existing outputs.
func (b *builder) run(ctx context.Context, chosen []target, lanes int) error {
	stale, err := b.stale(chosen)
	if err != nil {
		return err
	}
	var need toolset
	for _, t := range stale {
		tools := t.recipe.tools()
		need.c, need.libseccomp = need.c || tools.c, need.libseccomp || tools.libseccomp
	}
	if err := b.toolchain.checkTools(need); err != nil {
		return err
	}
	b.report.begin(len(chosen), len(stale))
	err = b.makeAll(ctx, stale, lanes)
	// The manifest also lists targets that were built before an error.
	err = errors.Join(err, b.finish())
	b.report.end(err == nil)
	return err
}

type result struct {
	target target
	stamp  stamp
	err    error
}

// makeAll builds the targets on several lanes, each after its needs. After the
// first error it starts no more targets and stops the running ones. Packages that
// are compiled already stay in the Go cache.
func (b *builder) makeAll(ctx context.Context, todo []target, lanes int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	pending := map[string]bool{}
	for _, t := range todo {
		pending[t.name] = true
	}
	busy := map[string]bool{} // groups
	isReady := func(t target) bool {
		if busy[t.group] {
			return false
		}
		for _, need := range t.needs {
			if pending[need] {
				return false
			}
		}
		return true
	}

	results := make(chan result)
	var fault error
	running := 0
	for len(todo) > 0 || running > 0 {
		for i := 0; i < len(todo) && running < lanes && fault == nil; {
			t := todo[i]
			if !isReady(t) {
				i++
				continue
			}
			todo = append(todo[:i:i], todo[i+1:]...)
			key, err := b.key(t)
			if err != nil {
				fault = fmt.Errorf("%s: %w", t.name, err)
				break
			}
			running++
			busy[t.group] = true
			go func() {
				s, err := b.make(ctx, t, key)
				results <- result{t, s, err}
			}()
		}
		if running == 0 {
			break
		}
		r := <-results
		running--
		delete(pending, r.target.name)
		delete(busy, r.target.group)
		switch {
		case r.err == nil:
			b.stamps[r.target.name] = r.stamp
		case fault == nil:
			fault = r.err
			cancel()
		}
	}
	return fault
}

// make builds one target to a temporary file, checks it, and renames it to its path.
func (b *builder) make(ctx context.Context, t target, key string) (_ stamp, err error) {
	b.report.start(t.name)
	begun := time.Now()
	var s stamp
	defer func() { b.report.done(t.name, time.Since(begun), s.Size, err) }()

	output, temp := b.outputFile(t), b.stateFile(t, "tmp", "")
	for _, dir := range []string{filepath.Dir(output), filepath.Dir(temp)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return s, err
		}
	}
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	version := b.versions[t.name]
	c := t.recipe.command(inputs{
		toolchain: b.toolchain, moduleDir: filepath.Join(b.componentsDir, t.module), outDir: b.outDir, output: temp,
		version: version, image: expand(t.image, version),
	})
	run := execution{
		command: c, dir: filepath.Join(b.componentsDir, t.module),
		log:     b.stateFile(t, "logs", ".log"),
		compile: func(n int) { b.report.compiled(t.name, n) },
	}
	if err := run.start(ctx); err != nil {
		return s, fmt.Errorf("build %s: %w", t.name, err)
	}
	if err := b.verify(ctx, t, temp, version); err != nil {
		return s, fmt.Errorf("check %s: %w", t.name, err)
	}
	programs, err := b.programVersions(t)
	if err != nil {
		return s, err
	}
	made, err := newStamp(key, version, programs, temp)
	if err != nil {
		return s, err
	}
	// Remove the old stamp before the old output is replaced.
	if err := os.Remove(b.stampFile(t)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	if err := os.Rename(temp, output); err != nil {
		return s, err
	}
	if err := writeJSON(b.stampFile(t), made); err != nil {
		return s, err
	}
	s = made
	return s, nil
}

// verify checks a built program.
func (b *builder) verify(ctx context.Context, t target, program, version string) error {
	info, err := os.Stat(program)
	if err != nil {
		return err
	}
	if t.maxSize > 0 && info.Size() > t.maxSize {
		return fmt.Errorf("it has %d bytes, more than the limit of %d", info.Size(), t.maxSize)
	}
	if t.check == nil || !b.toolchain.native() {
		return nil
	}
	out, err := outputOf(ctx, program, t.check.args)
	if err != nil {
		return err
	}
	for _, want := range t.check.wants {
		if want = expand(want, version); !strings.Contains(out, want) {
			return fmt.Errorf("%s printed %q, without %q", strings.Join(t.check.args, " "), strings.TrimSpace(out), want)
		}
	}
	return nil
}

// finish updates the links and the manifests for the existing outputs.
func (b *builder) finish() error {
	var errs []error
	for _, t := range b.all {
		if _, ok := b.stamps[t.name]; !ok {
			continue
		}
		for _, p := range t.programs {
			if path := filepath.Join(b.outDir, bin, t.side, p); path != b.outputFile(t) {
				errs = append(errs, link(path, filepath.Base(t.output)))
			}
		}
	}
	for _, side := range b.sides() {
		m, err := newManifest(b.all, b.stamps, side)
		if err == nil {
			err = m.write(filepath.Join(b.outDir, bin, side))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// sides returns the main directory of the programs, which is "", and the sides that have outputs.
func (b *builder) sides() []string {
	sides := []string{""}
	for _, t := range b.all {
		if _, built := b.stamps[t.name]; built && !slices.Contains(sides, t.side) {
			sides = append(sides, t.side)
		}
	}
	return sides
}

// lock prevents two builds in the same output directory. If another build is
// running, it calls report and waits. The lock ends with the process.
func lock(outDir string, report func(string)) (*os.File, error) {
	path := filepath.Join(outDir, ".stamps", "lock")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		report("waiting for another build in " + outDir)
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
	}
	return file, nil
}
