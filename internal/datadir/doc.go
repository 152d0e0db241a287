// Package datadir manages the data dirs of nodes. It checks whether a node may use a directory, marks the directory with a record,
// records the data dirs of nodes in the account's registry, and removes the data of a node without removing other files.
//
// Runs in: parent, child or either; functions with a restriction document it.
package datadir
