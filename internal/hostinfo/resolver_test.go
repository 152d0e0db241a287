package hostinfo

import (
	"testing"

	"gotest.tools/v3/assert"
)

func TestParseResolver(t *testing.T) {
	t.Parallel()
	assert.DeepEqual(t, ParseResolver("# nameserver 192.0.2.9\n; x\nsearch old.example\nnameserver 192.0.2.1\nnameserver 2001:db8::1 \n"+
		"search corp.example.\tb.example\noptions rotate timeout:1\noptions edns0\nsortlist\nnameserver\n"), Resolver{
		Servers: []string{"192.0.2.1", "2001:db8::1"}, Search: []string{"corp.example", "b.example"}, Options: []string{"rotate", "timeout:1", "edns0"},
	})
	assert.DeepEqual(t, ParseResolver("search a.example\ndomain b.example c.example"), Resolver{Search: []string{"b.example"}})
	assert.DeepEqual(t, ParseResolver("nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n"), Resolver{
		Servers: []string{"127.0.0.53"}, Options: []string{"edns0", "trust-ad"},
	})
	_, err := ReadResolver(t.TempDir() + "/none")
	assert.ErrorContains(t, err, "no such file")
}
