package kubeapi

import (
	"fmt"
	"io"
)

// Limits of what is read from a server, in bytes. A server that is not authenticated may be anything.
const (
	// maxPublicAnswer is for an answer of a server that is not authenticated: a ConfigMap has at most 1 MiB.
	maxPublicAnswer = 4 << 20
	// maxAnswer is for an answer of the cluster's API server. A page of 500 objects of the largest size that etcd stores
	// (1.5 MiB) does not occur; the lists of a cluster of thousands of nodes are far below it.
	maxAnswer = 256 << 20
	// maxEvent is for one event of a watch, which holds one object.
	maxEvent = 16 << 20
)

// boundedReader fails when more than limit bytes were read since the last reset.
type boundedReader struct {
	from        io.Reader
	limit, left int64
}

func bound(from io.Reader, limit int64) *boundedReader {
	return &boundedReader{from: from, limit: limit, left: limit}
}

func (b *boundedReader) reset() { b.left = b.limit }

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the answer is larger than %d bytes", b.limit)
	}
	n, err := b.from.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
