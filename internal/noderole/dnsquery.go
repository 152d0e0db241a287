package noderole

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"golang.org/x/net/dns/dnsmessage"
)

// maxDNSAnswer is the size of a UDP answer without EDNS, in bytes.
const maxDNSAnswer = 512

// resolveName sends one UDP query for the addresses of name to a DNS server, and returns an error unless the answer has one.
// It does not use the host's resolver configuration, as package net would.
func resolveName(ctx context.Context, server netip.AddrPort, name string) error {
	query, id, err := dnsQuery(server.Addr(), name)
	if err != nil {
		return err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp", server.String())
	if err != nil {
		return fmt.Errorf("query %s: %w", server, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	answer := make([]byte, maxDNSAnswer)
	_, err = conn.Write(query)
	for err == nil {
		var n int
		if n, err = conn.Read(answer); err == nil && n >= 2 && binary.BigEndian.Uint16(answer) == id {
			return checkAnswer(answer[:n])
		}
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EPERM): // kube-proxy rejects or drops the query
		return fmt.Errorf("the Service at %s has no endpoint", server.Addr())
	case ctx.Err() != nil:
		return fmt.Errorf("no answer from %s", server.Addr())
	}
	return fmt.Errorf("query %s: %w", server, err)
}

// dnsQuery returns a query for the addresses of name in the family of server, and its id.
func dnsQuery(server netip.Addr, name string) (query []byte, id uint16, err error) {
	n, err := dnsmessage.NewName(strings.TrimSuffix(name, ".") + ".")
	if err != nil {
		return nil, 0, fmt.Errorf("query %s: %w", name, err)
	}
	kind := dnsmessage.TypeA
	if server.Is6() {
		kind = dnsmessage.TypeAAAA
	}
	var random [2]byte
	_, _ = rand.Read(random[:]) // never fails
	id = binary.BigEndian.Uint16(random[:])
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: n, Type: kind, Class: dnsmessage.ClassINET}},
	}
	query, err = m.Pack()
	return query, id, err
}

// checkAnswer returns an error unless the answer has a record.
func checkAnswer(answer []byte) error {
	var m dnsmessage.Message
	if err := m.Unpack(answer); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if m.RCode != dnsmessage.RCodeSuccess {
		return fmt.Errorf("the server answers %s", strings.TrimPrefix(m.RCode.String(), "RCode"))
	}
	if len(m.Answers) == 0 {
		return errors.New("the server knows no address of the name")
	}
	return nil
}
