package hostport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// EnsureAddress adds an IPv4 address to the loopback device of this network namespace. Pods reach it through their default
// route; it is not reachable from outside the node. It needs CAP_NET_ADMIN in the namespace. Runs in: child.
//
// It uses rtnetlink(7), because the older ioctl would first assign the address's whole class network to the device.
func EnsureAddress(ip netip.Addr) error {
	lo, err := net.InterfaceByName("lo")
	if err == nil {
		err = addAddress(lo.Index, ip)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add the address %s to the node: %w", ip, err)
	}
	return nil
}

const (
	hostPrefix    = 32 // bits: only this address
	attrHeaderLen = unix.SizeofRtAttr
)

func addAddress(index int, ip netip.Addr) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // no data can be lost
	if err := unix.Sendto(fd, newAddress(index, ip), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, unix.Getpagesize())
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return err
	}
	// The answer is a header and, in an error message, a negative errno, which is 0 for success.
	e := binary.NativeEndian
	if n < unix.SizeofNlMsghdr+4 || e.Uint16(buf[4:]) != unix.NLMSG_ERROR {
		return errors.New("rtnetlink sent no acknowledgment")
	}
	if code := int32(e.Uint32(buf[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// newAddress returns the message RTM_NEWADDR for one IPv4 address, with a request for an acknowledgment.
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
