// Package datadir keeps the data of a node where it belongs. It decides which directory a node may use, marks it with a
// record, remembers in the account's registry which node uses which directory, and removes a node's data and nothing else.
//
// Runs in: parent, child or either; each function says so where it matters.
package datadir
