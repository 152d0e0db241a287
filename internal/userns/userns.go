// Package userns detects user namespaces. No other package imports the library that it uses, so that the library can be replaced in one place.
//
// Runs in: parent, child or either.
package userns

import "github.com/opencontainers/runc/libcontainer/userns" //nolint:staticcheck // required library

// Inside reports whether this process runs in a user namespace other than the initial one. It returns false if /proc does not have that
// information.
func Inside() bool { return userns.RunningInUserNS() } //nolint:staticcheck // required library
