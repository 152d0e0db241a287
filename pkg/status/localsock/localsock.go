// Package localsock listens on unix sockets that only the node's own account may use, and tells who connected.
//
// It is apart from pkg/status so that the exec path does not link an HTTP stack. It opens sockets and nothing else.
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

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

const (
	socketMode = 0o600
	dirMode    = 0o700
)

// Listen makes the directory of path (0700), replaces a stale socket there and listens on path with mode 0600. A socket
// that still answers is not taken over: the error is of class errdefs.ErrAlreadyRunning. The listener removes the
// socket when it is closed.
//
// Runs in: parent, child or either; path is resolved in the caller's mount namespace.
func Listen(path string) (*net.UnixListener, error) {
	if len(path) > layout.SocketPathMax {
		err := fmt.Errorf("listen on %s: the path has %d bytes, unix sockets take %d", path, len(path), layout.SocketPathMax)
		return nil, errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, err), "choose a shorter node name or a shorter XDG_RUNTIME_DIR")
	}
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return nil, fmt.Errorf("make socket directory: %w", err)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	// The directory is closed to others, so there is no moment in which the wider mode of bind(2) matters.
	if err := os.Chmod(path, socketMode); err != nil {
		return nil, errors.Join(fmt.Errorf("protect socket: %w", err), l.Close())
	}
	return l, nil
}

func removeStale(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at socket: %w", err)
	}
	if st.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("listen on %s: something else than a socket is there", path)
	}
	if c, err := net.Dial("unix", path); err == nil {
		return errdefs.Class(errdefs.ErrAlreadyRunning, errors.Join(fmt.Errorf("listen on %s: another process answers there", path), c.Close()))
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	return nil
}

// PeerUID returns the uid of the process at the other end of c as the caller's user namespace sees it: whoever has no
// mapping appears as the overflow uid (user_namespaces(7), "Unmapped user and group IDs"). Inside the node the account
// itself is 0, so host processes of the account appear as 0 and those of anybody else, root included, as 65534 or as a
// subordinate id.
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

// Own wraps l so that Accept yields only connections of the caller's own uid and closes all others. The listener must
// be of unix sockets; anything else that it accepts is closed too.
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
		// Nothing can be done about a close error of a connection that is refused.
		_ = c.Close()
	}
}

// NotRunning tells whether a dial error means that nobody serves the socket.
func NotRunning(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOTDIR)
}
