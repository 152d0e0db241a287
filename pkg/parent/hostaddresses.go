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

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// addressWatcher keeps files with the host's addresses up to date. The node role needs the addresses to check those of Services, but
// cannot read them in its own network namespace.
type addressWatcher struct {
	files  []*addressFile
	events *os.File
	retry  time.Duration
	done   sync.WaitGroup
	mu     sync.Mutex // held by update
}

// addressRetry is the interval for retries after an error: a name server may respond only some time after a route was added.
const addressRetry = 5 * time.Second

// addressFile is a file with the JSON of the value that read returns.
type addressFile struct {
	path string
	read func() (any, error)
	last any
}

// update writes the file if the value has changed.
func (f *addressFile) update() error {
	now, err := f.read()
	if err != nil || reflect.DeepEqual(now, f.last) {
		return err
	}
	if err := layout.WriteJSON(f.path, now); err != nil {
		return err
	}
	f.last = now
	return nil
}

func (w *addressWatcher) update() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for _, f := range w.files {
		errs = append(errs, f.update())
	}
	return errors.Join(errs...)
}

// watchAddresses writes the files, and updates them whenever addresses or routes change, until close. It passes later errors to
// report.
func watchAddresses(report func(error), files ...*addressFile) (*addressWatcher, error) {
	events, err := addressEvents()
	if err != nil {
		return nil, err
	}
	w := &addressWatcher{files: files, events: events, retry: addressRetry}
	if err := w.update(); err != nil {
		return nil, errors.Join(err, events.Close())
	}
	w.done.Go(func() { w.follow(report) })
	return w, nil
}

// follow updates the files at each event, and after an error again after the retry interval. It reports repeated errors once.
func (w *addressWatcher) follow(report func(error)) {
	reported := ""
	for buf := make([]byte, os.Getpagesize()); ; {
		// The content of the message does not matter, because update reads all addresses. ENOBUFS means that messages were lost.
		if _, err := w.events.Read(buf); errors.Is(err, os.ErrClosed) {
			return
		}
		err, next := w.update(), time.Time{}
		text := ""
		if err != nil {
			text, next = err.Error(), time.Now().Add(w.retry)
			if text != reported {
				report(err)
			}
		}
		reported = text
		_ = w.events.SetReadDeadline(next) // fails only after close, which the next read returns
	}
}

func (w *addressWatcher) close() {
	_ = w.events.Close() // only read from
	w.done.Wait()
}

// addressEvents returns a netlink socket that is readable after each change of the host's addresses and IPv4 routes (rtnetlink(7)).
// Only the kernel sends to it.
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

// addressFiles returns the files with the host's addresses that the node role needs.
func (r *run) addressFiles(ctx context.Context) []*addressFile {
	files := []*addressFile{
		{path: r.Runtime.HostAddresses(), read: func() (any, error) { return hostAddresses() }},
		{path: r.Runtime.HostRoutes(), read: newOverlaps(r.Config)},
		{path: r.Runtime.HostResolver(), read: readResolver},
	}
	if r.Config.MultiNode() {
		files = append(files, &addressFile{path: r.Runtime.NodeAddress(), read: func() (any, error) {
			ip, err := preflight.NodeAddress(ctx, r.Config)
			if err != nil {
				return nil, errdefs.Preflight("%w", err).With(errdefs.Do(errdefs.Start, "nodeIP=ADDRESS").Note("one of: ip -brief address"))
			}
			return ip, nil
		}})
	}
	return files
}

// hostAddresses returns the addresses of the interfaces that are up, in the order of the kernel, bridges last.
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
			continue // removed meanwhile, which causes another event
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
	// Bridges of containers and virtual machines come after the interfaces that other hosts can reach.
	slices.SortStableFunc(list, func(a, b layout.HostAddress) int { return bridgeRank(a.Interface) - bridgeRank(b.Interface) })
	return list, nil
}

// bridgeRank returns 1 for bridges and 0 for other interfaces.
func bridgeRank(name string) int {
	if _, err := os.Stat("/sys/class/net/" + name + "/bridge"); err == nil {
		return 1
	}
	return 0
}
