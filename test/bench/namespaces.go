package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// insideLimit is the time limit for creating the namespaces once.
const insideLimit = 30 * time.Second

// handshake is how long a program inside continues after its first line. It is not part of the measured times. It is needed because
// RootlessKit's parent fails with EOF if its target ends before parent and child have agreed on the ports.
const handshake = 200 * time.Millisecond

// entry is one sample: seconds until a program inside has written a line, and until all processes have ended.
type entry struct {
	Side   string  `json:"side"`
	Inside float64 `json:"inside"`
	Whole  float64 `json:"whole"`
}

// emptyNamespaces creates the namespaces of both sides in turn, without components.
func (b *bench) emptyNamespaces(ctx context.Context) ([]row, error) {
	cfg := b.setup.cfg
	cfg.Name, cfg.DataDir = "bench-ns", filepath.Join(b.work, "ns")
	effective := filepath.Join(b.work, "ns.json")
	if err := layout.WriteJSON(effective, cfg); err != nil {
		return nil, err
	}
	rt := layout.NewRuntime(os.Getenv("XDG_RUNTIME_DIR"), cfg.Name)
	kit := []string{
		b.rootlesskit, "--net=" + b.setup.handover.Network.Driver, fmt.Sprintf("--mtu=%d", cfg.Network.MTU),
		"--disable-host-loopback", "--port-driver=builtin", "--pidns", "--cgroupns", "--utsns", "--ipcns",
	}
	for _, dir := range cfg.Mounts.CopyUp {
		kit = append(kit, "--copy-up="+dir)
	}
	// Not true(1): see handshake.
	kit = append(kit, "sh", "-c", "echo inside; read -r end || :")
	sides := []struct {
		name string
		argv []string
		gone string
	}{
		{b.node.name(), []string{b.namespaces, effective, rt.Dir}, rt.Lock()},
		{"rootlesskit", kit, ""},
	}
	b.waitQuiet(ctx)
	var all []entry
	inside, whole := map[string][]float64{}, map[string][]float64{}
	for i := range b.nsPairs + 1 {
		for _, s := range sides {
			e, err := enter(ctx, s.argv, s.gone)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			if i == 0 {
				continue // warm-up
			}
			e.Side = s.name
			all = append(all, e)
			inside[s.name] = append(inside[s.name], e.Inside)
			whole[s.name] = append(whole[s.name], e.Whole)
		}
	}
	own, peer := sides[0].name, sides[1].name
	return []row{
		compared("namespaces, copy-up and network, to the first line inside", inside[own], inside[peer], "ms", 0),
		compared("  until all of it has ended", whole[own], whole[peer], "ms", 0),
	}, b.save(partNamespaces, all)
}

// enter runs argv until it has written a line, then ends it, and waits until the file gone does not exist.
func enter(ctx context.Context, argv []string, gone string) (entry, error) {
	ctx, cancel := context.WithTimeout(ctx, insideLimit)
	defer cancel()
	var e entry
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = insideLimit
	var complaint strings.Builder
	cmd.Stderr = &complaint
	in, err := cmd.StdinPipe()
	if err != nil {
		return e, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return e, err
	}
	t0 := time.Now()
	if err := cmd.Start(); err != nil {
		return e, err
	}
	_, rerr := out.Read(make([]byte, 1))
	e.Inside = time.Since(t0).Seconds()
	time.Sleep(handshake)
	_ = in.Close() // the program inside ends
	if err := errors.Join(rerr, cmd.Wait()); err != nil {
		return e, fmt.Errorf("%w: %s", err, strings.TrimSpace(complaint.String()))
	}
	if gone != "" {
		if err := until(ctx, "the end of the guard", func() error {
			if _, err := os.Stat(gone); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s still exists", gone)
			}
			return nil
		}); err != nil {
			return e, err
		}
	}
	e.Whole = (time.Since(t0) - handshake).Seconds()
	return e, nil
}
