package cgroupv2

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"gotest.tools/v3/assert"
)

// userManager is a fake systemd user manager on its private socket. Like the real one, it starts a transient scope by
// creating a cgroup, in d, and moving processes into it.
type userManager struct {
	t    *testing.T
	d    string
	l    net.Listener
	done sync.WaitGroup

	mu      sync.Mutex
	conns   []net.Conn
	started []map[string]dbus.Variant
	killed  []string
}

func startManager(t *testing.T, d string) (*userManager, Options) {
	t.Helper()
	o := sandboxOptions()
	dir, err := os.MkdirTemp(os.Getenv("TMPDIR"), "xdg")
	assert.NilError(t, err)
	o.RuntimeDir = dir
	assert.NilError(t, os.MkdirAll(filepath.Join(dir, "systemd"), 0o700))
	m := &userManager{t: t, d: d}
	m.l, err = net.Listen("unix", filepath.Join(dir, "systemd", "private"))
	assert.NilError(t, err)
	m.done.Go(m.accept)
	t.Cleanup(func() {
		_ = m.l.Close()
		m.mu.Lock()
		for _, c := range m.conns {
			_ = c.Close()
		}
		m.mu.Unlock()
		m.done.Wait()
	})
	return m, o
}

func (m *userManager) accept() {
	for {
		c, err := m.l.Accept()
		if err != nil {
			return
		}
		m.mu.Lock()
		m.conns = append(m.conns, c)
		m.mu.Unlock()
		m.done.Go(func() { m.serve(c) })
	}
}

// serve implements the server side of the D-Bus protocol: authentication in lines, then messages.
func (m *userManager) serve(c net.Conn) {
	r := bufio.NewReader(c)
	if b, _ := r.ReadByte(); b != 0 {
		return
	}
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		switch strings.TrimSpace(line) {
		case "AUTH":
			_, _ = io.WriteString(c, "REJECTED EXTERNAL\r\n")
		case "AUTH EXTERNAL":
			_, _ = io.WriteString(c, "OK 0123456789abcdef0123456789abcdef\r\n")
		case "NEGOTIATE_UNIX_FD":
			_, _ = io.WriteString(c, "ERROR\r\n")
		case "BEGIN":
			for {
				msg, err := dbus.DecodeMessage(r)
				if err != nil {
					return
				}
				m.handle(c, msg)
			}
		}
	}
}

const jobPath = dbus.ObjectPath("/org/freedesktop/systemd1/job/1")

func (m *userManager) handle(c net.Conn, msg *dbus.Message) {
	member, _ := msg.Headers[dbus.FieldMember].Value().(string)
	switch member {
	case "StartTransientUnit":
		unit := msg.Body[0].(string)
		if err := m.startUnit(unit, msg.Body[2]); err != nil {
			m.fail(c, msg, "org.freedesktop.systemd1.UnitExists", err.Error())
			return
		}
		m.reply(c, msg, jobPath)
		m.jobRemoved(unit)
	case "KillUnit":
		m.mu.Lock()
		m.killed = append(m.killed, msg.Body[0].(string))
		m.mu.Unlock()
		m.reply(c, msg)
	case "StopUnit":
		unit := msg.Body[0].(string)
		_ = rmdirAll(filepath.Join(m.d, unit))
		m.reply(c, msg, jobPath)
		m.jobRemoved(unit)
	case "ResetFailedUnit":
		m.fail(c, msg, "org.freedesktop.systemd1.NoSuchUnit", "not loaded")
	default: // AddMatch is a method of a bus, and there is no bus
		m.fail(c, msg, "org.freedesktop.DBus.Error.UnknownMethod", member)
	}
}

func (m *userManager) startUnit(unit string, props any) error {
	dir := filepath.Join(m.d, unit)
	if err := os.Mkdir(dir, dirMode); err != nil {
		return err
	}
	got := map[string]dbus.Variant{}
	for _, p := range props.([][]any) {
		got[p[0].(string)] = p[1].(dbus.Variant)
	}
	m.mu.Lock()
	m.started = append(m.started, got)
	m.mu.Unlock()
	var errs []error
	for _, pid := range got["PIDs"].Value().([]uint32) {
		errs = append(errs, movePid(dir, int(pid)))
	}
	return errors.Join(errs...)
}

// jobRemoved sends the signal to every connection, as systemd does on its private socket.
func (m *userManager) jobRemoved(unit string) {
	body := []any{uint32(1), jobPath, unit, "done"}
	msg := &dbus.Message{Type: dbus.TypeSignal, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath:      dbus.MakeVariant(dbus.ObjectPath("/org/freedesktop/systemd1")),
		dbus.FieldInterface: dbus.MakeVariant("org.freedesktop.systemd1.Manager"),
		dbus.FieldMember:    dbus.MakeVariant("JobRemoved"),
		dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(body...)),
	}, Body: body}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		m.send(c, msg, 2)
	}
}

func (m *userManager) reply(c net.Conn, to *dbus.Message, body ...any) {
	h := map[dbus.HeaderField]dbus.Variant{dbus.FieldReplySerial: dbus.MakeVariant(to.Serial())}
	if len(body) > 0 {
		h[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(body...))
	}
	m.send(c, &dbus.Message{Type: dbus.TypeMethodReply, Headers: h, Body: body}, 1)
}

func (m *userManager) fail(c net.Conn, to *dbus.Message, name, text string) {
	m.send(c, &dbus.Message{Type: dbus.TypeError, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(to.Serial()),
		dbus.FieldErrorName:   dbus.MakeVariant(name),
		dbus.FieldSignature:   dbus.MakeVariant(dbus.SignatureOf(text)),
	}, Body: []any{text}}, 1)
}

func (m *userManager) send(c net.Conn, msg *dbus.Message, serial uint32) {
	var buf bytes.Buffer
	assert.Check(m.t, msg.EncodeTo(&buf, binary.LittleEndian))
	// The serial is at byte 8 of the header. The library sets it only on its own connections.
	binary.LittleEndian.PutUint32(buf.Bytes()[8:], serial)
	_, _ = c.Write(buf.Bytes())
}

func TestClaimScope(t *testing.T) {
	sb, here := inSandbox(t)
	if !here {
		return
	}
	d := filepath.Dir(sb.host.SelfDir())
	m, o := startManager(t, d)
	claim := func() *Subtree {
		s, err := Claim(t.Context(), Delegation{Source: SourceScope}, "a", o)
		assert.NilError(t, err)
		assert.Equal(t, s.Path(), filepath.Join(d, "rootlessnode-a.scope", "rootlessnode-a"))
		assert.Equal(t, cgroupOf(t, os.Getpid()), s.Path())
		return s
	}
	s := claim()
	props := m.started[0]
	assert.Equal(t, props["Delegate"].Value(), true)
	assert.DeepEqual(t, props["PIDs"].Value(), []uint32{uint32(os.Getpid())})
	assert.Equal(t, props["CollectMode"].Value(), "inactive-or-failed")
	_, err := s.Arrange(os.Getpid(), cat(t).Process.Pid)
	assert.NilError(t, err)
	assert.NilError(t, s.Remove(t.Context()))
	scope := filepath.Join(d, "rootlessnode-a.scope")
	assert.Equal(t, cgroupOf(t, os.Getpid()), scope, "only systemd can move the process out of the scope")

	// The scope of a crashed node is stopped and a new one is started.
	assert.NilError(t, moveSelf(filepath.Join(d, enterLeaf)))
	claim()
	assert.DeepEqual(t, m.killed, []string{"rootlessnode-a.scope"})
	assert.Equal(t, len(m.started), 2)
	assert.NilError(t, moveSelf(filepath.Join(d, enterLeaf)))

	// A removal from outside, as by the guard, returns only after systemd has removed the scope.
	subtree := filepath.Join(scope, "rootlessnode-a")
	ended := make(chan error, 1)
	go func() { ended <- removeSubtree(t.Context(), subtree, "", o) }()
	for exists(subtree) {
		runtime.Gosched()
	}
	select {
	case err := <-ended:
		t.Fatalf("removed, with the scope still there: %v", err)
	case <-time.After(2 * pollSlice):
	}
	assert.NilError(t, rmdirAll(scope))
	assert.NilError(t, <-ended)

	// A scope that remains because another process is in it is reported.
	assert.NilError(t, os.Mkdir(scope, dirMode))
	blocker := cat(t)
	assert.NilError(t, movePid(scope, blocker.Process.Pid))
	ctx, cancel := context.WithTimeout(t.Context(), pollSlice)
	defer cancel()
	assert.ErrorContains(t, removeSubtree(ctx, subtree, "", o), "remove the scope: "+scope+": processes are left: ")
	assert.NilError(t, movePid(filepath.Join(d, enterLeaf), blocker.Process.Pid))
	assert.NilError(t, rmdirAll(scope))
}

func TestClaimScopeWithoutManager(t *testing.T) {
	t.Parallel()
	o := Options{RuntimeDir: t.TempDir()}
	_, err := Claim(t.Context(), Delegation{Source: SourceScope}, "a", o)
	assert.ErrorContains(t, err, "claim cgroup: reach the systemd user manager")
}
