// Package userns tells whether this process runs in a user namespace. It is the only package that imports the library
// which knows, so that changing the library is a change of one line.
//
// Runs in: parent, child or either.
package userns

import "github.com/opencontainers/runc/libcontainer/userns" //nolint:staticcheck // the library that was asked for

// Inside tells whether this process runs in a user namespace other than the initial one. Where /proc does not tell it
// says no.
func Inside() bool { return userns.RunningInUserNS() } //nolint:staticcheck // the same
