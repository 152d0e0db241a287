// Package nodeexec runs programs inside the node for callers outside: in the node's namespaces and, unlike nsenter(1), in a cgroup of the
// node's subtree.
//
// Serve is the service in the node role. Each connection runs one program: the client sends the request and its three standard
// descriptors, which become those of the program, so that no data is copied. When the client closes the connection, the program gets
// SIGHUP and then SIGKILL. When the program ends, its remaining processes are killed.
//
// Run is the client. The package does not link an HTTP stack, so that commands start fast.
//
// Runs in: Serve in the child (node role), Run in the parent, the command line or inside.
package nodeexec

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// Exit codes of a program that could not be started, as shells use them.
const (
	ExitNotExecutable = 126
	ExitNotFound      = 127
	// ExitSignalBase plus the number of a signal is the exit code of a program that was ended by the signal.
	ExitSignalBase = 128
)

const (
	// maxFrame is the maximum size of a message in bytes. The kernel limits arguments and environment to a quarter of the stack
	// limit, by default 2 MiB (execve(2)), and JSON may double that.
	maxFrame = 8 << 20
	// stdDescriptors is the number of descriptors that are sent with a request: stdin, stdout and stderr.
	stdDescriptors = 3
	frameHeader    = 4
)

// request is the first message of a connection, sent together with the descriptors.
type request struct {
	Argv []string `json:"argv"`
	// Env is added to the node's environment.
	Env []string `json:"env,omitempty"`
	Dir string   `json:"dir,omitempty"`
	// DirOptional allows HOME and then / if Dir does not exist.
	DirOptional bool `json:"dirOptional,omitempty"`
	// TTY makes stdin, which is a terminal, the controlling terminal.
	TTY bool `json:"tty,omitempty"`
}

// control is each further message of the client.
type control struct {
	Signal int `json:"signal"`
}

// reply is a message of the server. The first one has PID or Error. After a PID, the last one has Exited.
type reply struct {
	PID    int    `json:"pid,omitempty"`
	Error  string `json:"error,omitempty"`
	Code   int    `json:"code,omitempty"`
	Signal int    `json:"signal,omitempty"`
	Exited bool   `json:"exited,omitempty"`
}

func frame(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(b) > maxFrame {
		return nil, fmt.Errorf("message of %d bytes exceeds the maximum of %d bytes", len(b), maxFrame)
	}
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, frameHeader+len(b)), uint32(len(b))), b...), nil
}

func writeFrame(w io.Writer, v any) error {
	b, err := frame(v)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

func readFrame(r io.Reader, v any) error {
	var head [frameHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxFrame {
		return fmt.Errorf("message of %d bytes exceeds the maximum of %d bytes", n, maxFrame)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// writeRequest sends req and the descriptors fds.
func writeRequest(c *net.UnixConn, req request, fds []int) error {
	b, err := frame(req)
	if err != nil {
		return err
	}
	// The descriptors are sent with the first byte, because a long message may need several writes.
	if _, _, err := c.WriteMsgUnix(b[:1], unix.UnixRights(fds...), nil); err != nil {
		return err
	}
	_, err = c.Write(b[1:])
	return err
}

// readRequest receives a request and its descriptors, which are close-on-exec. The caller must close the descriptors, also after an error.
func readRequest(c *net.UnixConn) (request, []int, error) {
	var first [1]byte
	oob := make([]byte, unix.CmsgSpace(stdDescriptors*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(first[:], oob)
	if err != nil {
		return request{}, nil, err
	}
	fds, err := rights(oob[:oobn])
	if err != nil {
		return request{}, fds, err
	}
	if n == 0 {
		return request{}, fds, io.EOF
	}
	if flags&unix.MSG_CTRUNC != 0 || len(fds) != stdDescriptors {
		return request{}, fds, fmt.Errorf("request has %d descriptors, must be %d", len(fds), stdDescriptors)
	}
	var req request
	if err := readFrame(io.MultiReader(&oneByte{b: first[0]}, c), &req); err != nil {
		return request{}, fds, err
	}
	if len(req.Argv) == 0 || req.Argv[0] == "" {
		return request{}, fds, errors.New("no program to run")
	}
	return req, fds, nil
}

func rights(oob []byte) ([]int, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var fds []int
	for _, m := range msgs {
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS {
			continue
		}
		got, err := unix.ParseUnixRights(&m)
		if err != nil {
			return fds, err
		}
		fds = append(fds, got...)
	}
	return fds, nil
}

// oneByte is a reader that returns one byte.
type oneByte struct {
	b    byte
	done bool
}

func (o *oneByte) Read(p []byte) (int, error) {
	if o.done || len(p) == 0 {
		return 0, io.EOF
	}
	o.done, p[0] = true, o.b
	return 1, nil
}
