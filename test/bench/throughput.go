package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/builtin/parent/tcp"

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Size and time limit of one sample of sending through a forwarded port.
const (
	sendBytes = 1 << 30
	sendLimit = time.Minute
)

// throughput sends in turn to a program in the node's network namespace through a port of rootlessnode, to the same program through
// RootlessKit's TCP forwarding, to a program under RootlessKit's command line, and to a program on the host.
func (b *bench) throughput(ctx context.Context) ([]row, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	oursPort, kitPort, hostPort, directPort := b.port+1, b.port+2, b.port+3, b.port+4
	forward := fmt.Sprintf("127.0.0.1:%d:%[1]d", oursPort)
	if out, err := b.node.command(ctx, "ports", "add", forward).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("ports add: %w: %s", err, strings.TrimSpace(string(out)))
	}
	sink := func(port int) []string { return []string{self, roleSink, strconv.Itoa(port)} }
	kit := append([]string{
		b.rootlesskit, "--net=" + b.setup.handover.Network.Driver, fmt.Sprintf("--mtu=%d", b.setup.cfg.Network.MTU), "--disable-host-loopback",
		"--port-driver=builtin", "--copy-up=/etc", "--copy-up=/run", "--pidns", fmt.Sprintf("--publish=127.0.0.1:%d:%[1]d/tcp", kitPort),
	}, sink(kitPort)...)
	sides := []struct {
		name string
		argv []string
		port int
	}{
		{b.node.name(), append([]string{b.bin, "--name", b.name, "exec", "--"}, sink(oursPort)...), oursPort},
		{"rootlesskit", kit, kitPort},
		{"loopback", sink(hostPort), hostPort},
		// It comes after rootlessnode's, because it sends to the same sink.
		{"directly", []string{self, roleRelay, b.name, strconv.Itoa(directPort), b.setup.handover.Network.IP, strconv.Itoa(oursPort)}, directPort},
	}
	for _, s := range sides {
		stop, err := startSink(ctx, s.argv, s.port)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		defer stop()
	}
	b.waitQuiet(ctx)
	seconds := map[string][]float64{}
	for i := range b.pairs + 1 {
		for _, s := range sides {
			took, err := send(s.port, sendBytes)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			if i > 0 { // the first run is a warm-up
				seconds[s.name] = append(seconds[s.name], took.Seconds())
			}
		}
	}
	const target = 1 / 0.95
	own, peer, plain, directly := seconds[sides[0].name], seconds[sides[1].name], seconds[sides[2].name], seconds[sides[3].name]
	perSecond := func(s []float64) string { return fmt.Sprintf("%.0f MB/s", sendBytes/1e6/summarize(s).Median) }
	return []row{
		compared("1 GiB from the host into the node, against RootlessKit's own forward there", own, directly, "s", target),
		{what: "  per second", own: perSecond(own), peer: perSecond(directly)},
		compared("  against rootlesskit … in a namespace with no packet filter", own, peer, "s", 0),
		compared("  against loopback, without a namespace", own, plain, "s", 0),
	}, b.save(partThroughput, seconds)
}

// roleRelay is the role of this program as the host's side of a forward into a node, with RootlessKit's implementation instead of
// pkg/portdriver: `bench relay NODE PORT ADDRESS PORT`.
const roleRelay = "relay"

// relay forwards a port of the host's loopback to a port inside, and ends when its standard input is closed.
func relay(args []string) error {
	if len(args) != 4 {
		return errors.New("usage: relay NODE PORT ADDRESS PORT")
	}
	from, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	to, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	// The socket of the builtin driver's child (RootlessKit, pkg/port/builtin/parent).
	socket := filepath.Join(layout.NewRuntime(os.Getenv("XDG_RUNTIME_DIR"), args[0]).StateDir(), ".bp.sock")
	spec := port.Spec{Proto: "tcp4", ParentIP: "127.0.0.1", ParentPort: from, ChildIP: args[2], ChildPort: to}
	stop, stopped := make(chan struct{}), make(chan error, 1)
	if err := tcp.Run(socket, spec, stop, stopped, os.Stderr); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	close(stop)
	return <-stopped
}

// startSink starts a sink and waits until it accepts connections. stop ends it.
func startSink(ctx context.Context, argv []string, port int) (stop func(), err error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = insideLimit
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe() // closing it ends the sink
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() {
		_ = in.Close()
		_ = cmd.Wait() // the exit code does not matter
	}
	limited, cancel := context.WithTimeout(ctx, insideLimit)
	defer cancel()
	if err := until(limited, "the sink", func() error { _, err := send(port, 1); return err }); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// send sends n bytes to a sink and returns the time until all have arrived.
func send(port int, n int64) (time.Duration, error) {
	c, err := net.Dial("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }() // the answer has been received
	t0 := time.Now()
	if err := c.SetDeadline(t0.Add(sendLimit)); err != nil {
		return 0, err
	}
	if _, err := io.CopyBuffer(struct{ io.Writer }{c}, io.LimitReader(zeros{}, n), make([]byte, 128<<10)); err != nil {
		return 0, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return 0, errors.New("not a TCP connection")
	}
	if err := tcp.CloseWrite(); err != nil {
		return 0, err
	}
	var got int64
	if err := binary.Read(c, binary.BigEndian, &got); err != nil {
		return 0, fmt.Errorf("no answer: %w", err)
	}
	if got != n {
		return 0, fmt.Errorf("%d bytes of %d arrived", got, n)
	}
	return time.Since(t0), nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// roleSink is the role of this program as the receiver: `bench sink PORT`.
const roleSink = "sink"

// sink reads all data that is sent to a port, answers with its size, and ends when its standard input is closed.
func sink(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: sink PORT")
	}
	l, err := net.Listen("tcp4", ":"+args[0])
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = l.Close() // ends Accept
	}()
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() {
			n, _ := io.CopyBuffer(io.Discard, struct{ io.Reader }{c}, make([]byte, 128<<10))
			_ = binary.Write(c, binary.BigEndian, n) // the sender reports a missing answer
			_ = c.Close()
		}()
	}
}
