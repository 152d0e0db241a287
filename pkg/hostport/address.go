package hostport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// EnsureAddress gives the loopback device of this network namespace an IPv4 address of its own. Pods reach it through
// their default route; nobody outside the node does. It needs CAP_NET_ADMIN over the namespace. Runs in: child.
//
// It goes through rtnetlink(7): the older ioctl would first claim the address's whole class of network for the device.
func EnsureAddress(ip netip.Addr) error {
	lo, err := net.InterfaceByName("lo")
	if err == nil {
		err = addAddress(lo.Index, ip)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("give the node the address %s: %w", ip, err)
	}
	return nil
}

const (
	hostPrefix    = 32 // bits: the address alone
	attrHeaderLen = unix.SizeofRtAttr
)

func addAddress(index int, ip netip.Addr) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written to it that could get lost
	if err := unix.Sendto(fd, newAddress(index, ip), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, unix.Getpagesize())
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return err
	}
	// The answer is a header and, in an error message, a negative errno; 0 for success.
	e := binary.NativeEndian
	if n < unix.SizeofNlMsghdr+4 || e.Uint16(buf[4:]) != unix.NLMSG_ERROR {
		return errors.New("rtnetlink gave no answer")
	}
	if code := int32(e.Uint32(buf[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// newAddress is the message RTM_NEWADDR for one IPv4 address, asking for an answer.
func newAddress(index int, ip netip.Addr) []byte {
	e := binary.NativeEndian
	msg := make([]byte, unix.SizeofNlMsghdr, 64)
	e.PutUint16(msg[4:], unix.RTM_NEWADDR)
	e.PutUint16(msg[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	msg = append(msg, unix.AF_INET, hostPrefix, 0, unix.RT_SCOPE_UNIVERSE)
	msg = e.AppendUint32(msg, uint32(index))
	raw := ip.As4()
	for _, attr := range []uint16{unix.IFA_LOCAL, unix.IFA_ADDRESS} {
		msg = e.AppendUint16(msg, attrHeaderLen+uint16(len(raw)))
		msg = e.AppendUint16(msg, attr)
		msg = append(msg, raw[:]...)
	}
	e.PutUint32(msg, uint32(len(msg)))
	return msg
}
