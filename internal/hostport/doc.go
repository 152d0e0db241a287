// Package hostport lets a node reach selected TCP ports of the host's loopback, and no others.
//
// Inside, Relay listens on an address that only the node and its pods can reach. For each connection it sends a request over
// a unix socket to the parent outside (Serve). The parent connects to the host's loopback if the port is in the config, and
// passes the connected socket to the node. Data never passes through the parent. The parent has the list of ports, so a
// process that takes over the node cannot reach other ports.
//
// It supports only TCP.
package hostport
