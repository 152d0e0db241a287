package portdriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// sourcesLimit is the size limit of one message; a range takes about 20 bytes.
	sourcesLimit = 64 << 20
	// sourcesTimeout bounds the time for one client of the socket.
	sourcesTimeout = 10 * time.Second
)

// sourcesReply is the answer to a list of SourceRanges.
type sourcesReply struct {
	Error string `json:"error,omitempty"`
}

// SourcesSocket returns the path of the socket, in RootlessKit's state directory, on which a running driver receives
// SourceRanges.
func SourcesSocket(stateDir string) string { return filepath.Join(stateDir, "sources.sock") }

// SetSources replaces the SourceRanges of a running driver: ports in the list accept only clients with an allowed address,
// all others accept every client. It applies to open ports and to ports that open later. When it returns nil, the ranges are
// in force and connections of clients that are no longer allowed are closed. Runs in: parent or child.
func SetSources(ctx context.Context, socket string, list []SourceRange) error {
	if err := setSources(ctx, socket, list); err != nil {
		return fmt.Errorf("set source ranges of forwarded ports: %w", err)
	}
	return nil
}

func setSources(ctx context.Context, socket string, list []SourceRange) error {
	if list == nil {
		list = []SourceRange{}
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(0, 1)) })
	defer stop()
	if err := json.NewEncoder(c).Encode(list); err != nil {
		return err
	}
	var reply sourcesReply
	if err := json.NewDecoder(io.LimitReader(c, sourcesLimit)).Decode(&reply); err != nil {
		return err
	}
	if reply.Error != "" {
		return errors.New(reply.Error)
	}
	return nil
}

// listenForSources creates the socket, accessible only by the owner of the state directory.
func listenForSources(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen for source ranges: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for source ranges: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for source ranges: %w", err), l.Close())
	}
	return l, nil
}

// serveSources applies one list from each connection until l is closed.
func (t *sourceTable) serveSources(l *net.UnixListener, log io.Writer) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			_, _ = fmt.Fprintf(log, "source ranges: %v\n", err) // a log
			time.Sleep(acceptPause)
			continue
		}
		all.Go(func() {
			defer c.Close()
			if err := t.answer(c); err != nil {
				_, _ = fmt.Fprintf(log, "source ranges: %v\n", err) // a log
			}
		})
	}
}

func (t *sourceTable) answer(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(sourcesTimeout)); err != nil {
		return err
	}
	var list []SourceRange
	dec := json.NewDecoder(io.LimitReader(c, sourcesLimit))
	dec.DisallowUnknownFields()
	err := dec.Decode(&list)
	if err == nil && list == nil {
		err = errors.New("the list of source ranges is missing")
	}
	if err == nil {
		err = t.set(list)
	}
	var reply sourcesReply
	if err != nil {
		reply.Error = err.Error()
	}
	return errors.Join(err, json.NewEncoder(c).Encode(reply))
}
