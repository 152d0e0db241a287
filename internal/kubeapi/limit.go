package kubeapi

import (
	"fmt"
	"io"
)

// Size limits of responses, in bytes. They protect the client from a server that is not authenticated.
const (
	// maxPublicAnswer is the limit for a server that is not authenticated: a ConfigMap has at most 1 MiB.
	maxPublicAnswer = 4 << 20
	// maxAnswer is the limit for a response of the cluster's API server. The lists of a cluster with thousands of nodes are
	// far below it; a page of 500 objects of etcd's maximum size (1.5 MiB) does not occur.
	maxAnswer = 256 << 20
	// maxEvent is the limit for one watch event, which contains one object.
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
		return 0, fmt.Errorf("the response is larger than %d bytes", b.limit)
	}
	n, err := b.from.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
