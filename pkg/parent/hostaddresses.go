package parent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/preflight"
)

// addressBook keeps the file with the host's addresses up to date. The node role cannot see them from its own network
// namespace, and needs them to know which addresses a Service may have.
type addressBook struct {
	pages  []*page
	events *os.File
	retry  time.Duration
	done   sync.WaitGroup
}

// addressRetry is when a page is read again that could not be: a name server may answer some time after a route is there.
const addressRetry = 5 * time.Second

// page is one file of an address book: what read returns.
type page struct {
	path string
	read func() (any, error)
	last any
}

// update writes the page if it has changed.
func (p *page) update() error {
	now, err := p.read()
	if err != nil || reflect.DeepEqual(now, p.last) {
		return err
	}
	if err := layout.WriteJSON(p.path, now); err != nil {
		return err
	}
	p.last = now
	return nil
}

func (b *addressBook) update() error {
	var errs []error
	for _, p := range b.pages {
		errs = append(errs, p.update())
	}
	return errors.Join(errs...)
}

// keepAddresses writes the pages, and again whenever addresses or routes change, until the book is closed.
func keepAddresses(fault func(error), pages ...*page) (*addressBook, error) {
	events, err := addressEvents()
	if err != nil {
		return nil, err
	}
	book := &addressBook{pages: pages, events: events, retry: addressRetry}
	if err := book.update(); err != nil {
		return nil, errors.Join(err, events.Close())
	}
	book.done.Go(func() { book.follow(fault) })
	return book, nil
}

// follow updates the pages at each event, and after a fault in a while. Each fault is told once in a row.
func (b *addressBook) follow(fault func(error)) {
	told := ""
	for buf := make([]byte, os.Getpagesize()); ; {
		// What the message says does not matter: the kernel is asked anew. ENOBUFS tells of lost ones.
		if _, err := b.events.Read(buf); errors.Is(err, os.ErrClosed) {
			return
		}
		err, next := b.update(), time.Time{}
		text := ""
		if err != nil {
			text, next = err.Error(), time.Now().Add(b.retry)
			if text != told {
				fault(err)
			}
		}
		told = text
		_ = b.events.SetReadDeadline(next) // it fails on a closed book alone, and then the read says so
	}
}

func (b *addressBook) close() {
	_ = b.events.Close() // it was only read
	b.done.Wait()
}

// addressEvents is readable whenever an address or an IPv4 route of the host comes or goes (rtnetlink(7)). Nothing but the
// kernel sends there.
func addressEvents() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watch the host's addresses: %w", err)
	}
	groups := uint32(unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return nil, errors.Join(fmt.Errorf("watch the host's addresses: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// addressPages are what the node role has to know of the host's addresses.
func (r *run) addressPages(ctx context.Context) []*page {
	pages := []*page{{path: r.Runtime.HostAddresses(), read: func() (any, error) { return hostAddresses() }}}
	if r.Config.MultiNode() {
		pages = append(pages, &page{path: r.Runtime.NodeAddress(), read: func() (any, error) {
			ip, err := preflight.NodeAddress(ctx, r.Config)
			if err != nil {
				return nil, errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, err), "rootlessnode up --node-ip ADDRESS    # one of: ip -brief address")
			}
			return ip, nil
		}})
	}
	return pages
}

// hostAddresses lists the addresses of the interfaces that are up, in the kernel's order.
func hostAddresses() ([]layout.HostAddress, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("read the host's addresses: %w", err)
	}
	list := []layout.HostAddress{}
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it went away meanwhile, and will be told
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				list = append(list, layout.HostAddress{Interface: i.Name, IP: ip.Unmap()})
			}
		}
	}
	// Containers' and virtual machines' bridges come after the interfaces that others can reach.
	slices.SortStableFunc(list, func(a, b layout.HostAddress) int { return inner(a.Interface) - inner(b.Interface) })
	return list, nil
}

// inner is 1 for interfaces that lead to something inside the host.
func inner(name string) int {
	if _, err := os.Stat("/sys/class/net/" + name + "/bridge"); err == nil {
		return 1
	}
	return 0
}
