// Package localsock listens on unix sockets that only the account of the node may use, and reads the uid of their clients.
//
// It is separate from pkg/status so that the exec path does not link an HTTP stack.
//
// Runs in: parent, child or either.
package localsock

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

const (
	socketMode = 0o600
	dirMode    = 0o700
)

// Listen creates the directory of path with mode 0700, removes a stale socket at path, and listens on a new one with mode 0600. The
// listener removes the socket when it is closed.
//
// Errors: of class errdefs.ErrAlreadyRunning if another process serves the socket; errdefs.ErrConfig if path is too long.
//
// Runs in: parent, child or either; path is resolved in the caller's mount namespace.
func Listen(path string) (*net.UnixListener, error) {
	if len(path) > layout.SocketPathMax {
		err := fmt.Errorf("listen on %s: the path has %d bytes; the maximum for unix sockets is %d", path, len(path), layout.SocketPathMax)
		return nil, errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, err), "choose a shorter node name or a shorter XDG_RUNTIME_DIR")
	}
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return nil, fmt.Errorf("create socket directory: %w", err)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	// bind(2) creates the socket with a wider mode, but other accounts cannot enter its directory.
	if err := os.Chmod(path, socketMode); err != nil {
		return nil, errors.Join(fmt.Errorf("set socket mode: %w", err), l.Close())
	}
	return l, nil
}

func removeStale(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check for a stale socket: %w", err)
	}
	if st.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("listen on %s: the file exists and is not a socket", path)
	}
	if c, err := net.Dial("unix", path); err == nil {
		return errdefs.Class(errdefs.ErrAlreadyRunning, errors.Join(fmt.Errorf("listen on %s: already served by another process", path), c.Close()))
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	return nil
}

// PeerUID returns the uid of the process at the other end of c in the caller's user namespace. A uid without a mapping appears as the
// overflow uid (user_namespaces(7), "Unmapped user and group IDs"). Inside the node, the account is mapped to 0: its host processes
// appear as 0, and those of other accounts, including root, as 65534 or as a subordinate id.
func PeerUID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("read peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, fmt.Errorf("read peer credentials: %w", err)
	}
	if credErr != nil {
		return 0, fmt.Errorf("read peer credentials: %w", credErr)
	}
	return int(cred.Uid), nil
}

// Own returns a listener that accepts only connections with the uid of this process and closes all others. l must be a listener for
// unix sockets; other connections are closed too.
func Own(l net.Listener) net.Listener { return &ownListener{Listener: l, uid: os.Getuid()} }

type ownListener struct {
	net.Listener
	uid int
}

func (l *ownListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if u, ok := c.(*net.UnixConn); ok {
			if uid, err := PeerUID(u); err == nil && uid == l.uid {
				return c, nil
			}
		}
		_ = c.Close() // a refused connection; the error does not matter
	}
}

// NotRunning reports whether a dial error means that no process serves the socket.
func NotRunning(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOTDIR) ||
		errors.Is(err, unix.EINVAL) // the path is too long, so that no process can listen on it
}
