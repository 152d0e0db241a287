package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// bench is one run of this program.
type bench struct {
	options
	facts facts
	setup *setup
	node  *nodeSide
	bare  *bareSide
}

func run(ctx context.Context, o options) (err error) {
	if done, err := o.withoutNode(ctx); err != nil || done {
		return err
	}
	for _, p := range []string{o.bin, o.rootlesskit, o.namespaces, o.empty, o.script, o.rollout} {
		if _, err := os.Stat(p); err != nil {
			return fmt.Errorf("find the programs to compare: %w", err)
		}
	}
	if os.Geteuid() == 0 {
		return errors.New("nodes do not run as root: use hack/bench.sh, which uses a separate account")
	}
	for _, dir := range []string{o.out, o.work} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	b := &bench{options: o}
	b.node = &nodeSide{b: b, data: filepath.Join(o.work, "ours")}
	b.bare = &bareSide{b: b, data: filepath.Join(o.work, "bare")}
	defer func() { err = errors.Join(err, b.cleanUp()) }()
	if err := b.node.stop(ctx); err != nil { // left by an earlier run that was killed
		return err
	}
	return b.measure(ctx)
}

// withoutNode runs the parts that are separate programs, and reports whether no other part is selected.
func (o options) withoutNode(ctx context.Context) (done bool, err error) {
	others := 0
	for part := range strings.SplitSeq(o.parts, ",") {
		var argv []string
		switch part {
		case partPorts:
			argv = []string{o.ports}
		case partMounts:
			if err := os.MkdirAll(o.out, 0o755); err != nil {
				return false, err
			}
			argv = []string{o.mounts, "-json", filepath.Join(o.out, partMounts+".json")}
		default:
			others++
			continue
		}
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return false, fmt.Errorf("%s: %w", part, err)
		}
	}
	return others == 0, nil
}

// measure runs the parts. First it starts rootlessnode's node: that warms the page cache for both sides, provides the arguments and files
// of the components, and the memory and exec of this node are measured.
func (b *bench) measure(ctx context.Context) error {
	b.facts = readFacts(ctx, b.options)
	say("%s", b.facts)
	say("first start, to capture the configuration")
	if err := b.first(ctx); err != nil {
		return err
	}
	var rows []row
	for _, part := range []struct {
		name string
		f    func(context.Context) ([]row, error)
	}{
		{partMemory, b.memory}, {partExec, b.exec}, {partThroughput, b.throughput}, {partRollout, b.rollouts}, {partNamespaces, b.emptyNamespaces}, {partReady, b.ready},
	} {
		if part.name == partNamespaces || part.name == partReady {
			if err := b.node.stop(ctx); err != nil {
				return err
			}
		}
		if !b.wants(part.name) {
			continue
		}
		say("measuring: %s", part.name)
		r, err := part.f(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		rows = append(rows, r...)
	}
	fmt.Print(table(rows))
	return nil
}

// rollouts measures rolling updates in rootlessnode's node. There is nothing to compare it with.
func (b *bench) rollouts(ctx context.Context) ([]row, error) {
	cmd := exec.CommandContext(ctx, b.rollout, "-rootlessnode", b.bin, "-name", b.name, "-dir", filepath.Join(b.work, "rollout"),
		"-node-port", strconv.Itoa(rolloutPort), "-json", filepath.Join(b.out, partRollout+".json"))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return nil, cmd.Run()
}

// rolloutPort is the node port of the Service that is updated.
const rolloutPort = 30150

// first starts rootlessnode's node and leaves it running.
func (b *bench) first(ctx context.Context) error {
	if err := b.node.reset(ctx); err != nil {
		return err
	}
	l, err := b.node.launch(ctx)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	if _, err := l.wait(limited); err != nil {
		return err
	}
	s, err := b.node.status(ctx)
	if err != nil {
		return err
	}
	b.facts.Kubernetes, b.facts.Rootlessnode, b.facts.Network = s.Kubernetes, s.Version, s.Network.Driver
	b.setup, err = capture(s, filepath.Join(b.work, "setup"))
	return err
}

// cleanUp stops both sides and removes their data, also after errors.
func (b *bench) cleanUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), b.limit)
	defer cancel()
	errs := []error{b.bare.stop(ctx), b.node.stop(ctx), b.node.remove(ctx)}
	if errors.Join(errs...) == nil {
		errs = append(errs, b.removeWork(ctx))
	}
	return errors.Join(errs...)
}

// removeWork removes the work directory. It uses RootlessKit, because files of images may be owned by subordinate ids.
func (b *bench) removeWork(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, b.rootlesskit, "rm", "-rf", b.work).CombinedOutput()
	if err != nil {
		return fmt.Errorf("remove %s: %w: %s", b.work, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// save writes the samples of one part and a description of the machine to a file.
func (b *bench) save(part string, samples any) error {
	data, err := json.MarshalIndent(map[string]any{"machine": b.facts, "samples": samples}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.out, part+".json"), append(data, '\n'), 0o644)
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
