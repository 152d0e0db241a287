// Package relay connects two TCP connections with each other: a client's, and one to the server that the client is to reach.
//
// An idle pair costs its two sockets and no other descriptor. Both are released when the client is gone, even if the server
// never accepts, reads or answers (Watch). A client that only ended its own direction of the stream, with shutdown(2), gets
// its answer, however long that takes. A Budget keeps many pairs from using up the descriptors of the process, and one port
// from using up those of the others.
//
// Runs in: parent, child or either.
package relay
