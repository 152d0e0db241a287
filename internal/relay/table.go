package relay

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// socketTable queries the kernel for TCP sockets of this network namespace (sock_diag(7)). It needs no privilege.
type socketTable struct {
	mu  sync.Mutex
	fd  int
	seq uint32
}

// Sizes and offsets of struct inet_diag_req_v2 and struct inet_diag_msg (linux/inet_diag.h).
const (
	diagRequestLen = 56
	diagReplyLen   = 72
	diagIDOffset   = 8 // in the request
	diagStateAt    = 1 // in the reply
	diagInodeAt    = 68
	diagByFamily   = 20 // SOCK_DIAG_BY_FAMILY
	diagTimeout    = time.Second
)

// closedStates are the states of a socket that its program has closed, or whose sending direction it has shut down.
var closedStates = []byte{unix.BPF_TCP_FIN_WAIT1, unix.BPF_TCP_FIN_WAIT2, unix.BPF_TCP_CLOSING, unix.BPF_TCP_TIME_WAIT, unix.BPF_TCP_LAST_ACK}

// openSocketTable returns nil if the kernel does not provide the table.
func openSocketTable() *socketTable {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil
	}
	timeout := unix.NsecToTimeval(int64(diagTimeout))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		_ = unix.Close(fd) // nothing was written
		return nil
	}
	return &socketTable{fd: fd}
}

func (t *socketTable) close() {
	if t != nil {
		_ = unix.Close(t.fd) // nothing was written
	}
}

// orphaned reports whether the client's socket of p is in this network namespace, has ended its direction of the stream, and
// no longer belongs to a program. It returns false if the socket is not found, because it may be on another host.
func (t *socketTable) orphaned(p pair) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seq++
	if err := unix.Sendto(t.fd, diagRequest(p, t.seq), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return false
	}
	e := binary.NativeEndian
	buf, n := make([]byte, 1024), 0
	for n < unix.SizeofNlMsghdr || e.Uint32(buf[8:]) != t.seq { // an earlier reply may be left in the queue
		var err error
		if n, _, err = unix.Recvfrom(t.fd, buf, 0); err != nil {
			return false
		}
	}
	if n < unix.SizeofNlMsghdr+diagReplyLen || e.Uint16(buf[4:]) != diagByFamily {
		return false // an error message: no such socket
	}
	reply := buf[unix.SizeofNlMsghdr:n]
	return slices.Contains(closedStates, reply[diagStateAt]) && e.Uint32(reply[diagInodeAt:]) == 0
}

// diagRequest returns a request for the socket at the client's end of p.
func diagRequest(p pair, seq uint32) []byte {
	e := binary.NativeEndian
	msg := make([]byte, unix.SizeofNlMsghdr+diagRequestLen)
	e.PutUint32(msg, uint32(len(msg)))
	e.PutUint16(msg[4:], diagByFamily)
	e.PutUint16(msg[6:], unix.NLM_F_REQUEST)
	e.PutUint32(msg[8:], seq)
	req := msg[unix.SizeofNlMsghdr:]
	req[0] = unix.AF_INET6
	if p.client.Addr().Is4() {
		req[0] = unix.AF_INET
	}
	req[1] = unix.IPPROTO_TCP
	e.PutUint32(req[4:], ^uint32(0)) // all states
	id := req[diagIDOffset:]
	binary.BigEndian.PutUint16(id, p.client.Port())
	binary.BigEndian.PutUint16(id[2:], p.server.Port())
	copy(id[4:20], p.client.Addr().AsSlice())
	copy(id[20:36], p.server.Addr().AsSlice())
	e.PutUint64(id[40:], ^uint64(0)) // INET_DIAG_NOCOOKIE
	return msg
}
