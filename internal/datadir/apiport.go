package datadir

import (
	"math/rand/v2"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// PickAPIPort returns the port of the host for the API server of the node with the data dir d, and keeps it with the data: that of its
// last start if it is free, otherwise a random free port from first to last. It does not return ports of the account's other nodes,
// stopped ones included, also if these are picking a port at the same time. was is the port of the last start, or 0.
//
// Errors: of class errdefs.ErrPreflight if there is no free port.
//
// Runs in: parent.
func (r Registry) PickAPIPort(d layout.Data, first, last int, free func(port int) bool) (port, was int, err error) {
	unlock := r.lock()
	defer unlock()
	identity, err := ReadIdentity(d)
	if err != nil {
		return 0, 0, err
	}
	was = identity.APIPort
	if was != 0 && free(was) {
		return was, was, nil
	}
	others := r.otherAPIPorts(d)
	count := last - first + 1
	for i, start := 0, rand.IntN(count); i < count; i++ {
		port := first + (start+i)%count
		if !slices.Contains(others, port) && free(port) {
			return port, was, UpdateIdentity(d, func(i *Identity) { i.APIPort = port })
		}
	}
	return 0, was, errdefs.Preflight("api.port: 0: none of the ports %d to %d (ports.pickRange) is free", first, last)
}

// lock locks the registry for other processes of the account, as far as it exists, until the returned function is called.
func (r Registry) lock() (unlock func()) {
	f, err := os.Open(layout.RegistryDir(r.XDGDataHome))
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil { // the account has no other node
		return func() {}
	}
	return func() { _ = f.Close() }
}

// otherAPIPorts returns the ports that the account's other nodes keep with their data.
func (r Registry) otherAPIPorts(d layout.Data) []int {
	var ports []int
	for _, e := range r.all() {
		for _, dir := range e.DataDirs {
			if i, err := ReadIdentity(layout.NewData(dir)); err == nil && dir != d.Dir {
				ports = append(ports, i.APIPort)
			}
		}
	}
	return ports
}
