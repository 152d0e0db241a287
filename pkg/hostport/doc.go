// Package hostport lets a node reach chosen TCP ports of the host's loopback, and no others.
//
// Inside, a listener on an address of the node alone takes the connections of the node and its pods (Relay). For each it
// asks, over a unix socket, the parent outside (Serve), which connects to the host's loopback if the port is one of those
// that the config names, and hands the connected socket in. Data never passes through the parent. The list is the
// parent's: whoever takes over the node gains no other port by it.
//
// It refuses anything but TCP, and everything that the config does not name.
package hostport
