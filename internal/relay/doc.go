// Package relay copies data between two TCP connections: one from a client, and one to its server.
//
// An idle pair uses its two sockets and no other descriptor. Both are released when the client has gone, even if the server
// never accepts, reads or answers (Watch). A client that only ended its own direction of the stream with shutdown(2) gets
// its answer, however long that takes. A Budget keeps many pairs from using all descriptors of the process, and one port
// from using those of the others.
//
// Runs in: parent, child or either.
package relay
