package config

import (
	"fmt"
	"testing"

	"gotest.tools/v3/assert"
)

func TestAddressRanges(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ text, prefixes string }{
		{"true", "[0.0.0.0/0 ::/0]"},
		{"false", "[]"},
		{"[]", "[]"},
		{"[192.0.2.7, 198.51.100.9/24]", "[192.0.2.7/32 198.51.100.0/24]"},
	} {
		c, err := LoadBytes([]byte(head+"ports: {externalIPs: "+tc.text+"}\n"), "f")
		assert.NilError(t, err)
		assert.Equal(t, fmt.Sprint(c.Ports.ExternalIPs.Prefixes()), tc.prefixes)
		set := Default()
		assert.NilError(t, set.Set("ports.externalIPs", tc.text))
		assert.DeepEqual(t, set, c)
		b, err := Marshal(c)
		assert.NilError(t, err)
		back, err := LoadBytes(b, "marshalled")
		assert.NilError(t, err)
		assert.DeepEqual(t, back, c)
	}
	_, err := LoadBytes([]byte(head+"ports: {externalIPs: 7}\n"), "f")
	assert.ErrorContains(t, err, "ports.externalIPs: must be true, false, or a list of addresses and CIDRs")
}
