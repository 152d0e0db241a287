package config

import (
	"net/netip"
	"testing"

	"gotest.tools/v3/assert"
)

func TestParseForward(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]Forward{
		"8080:80":              {netip.Addr{}, 8080, 80, "tcp", 1},
		"8080:80/udp":          {netip.Addr{}, 8080, 80, "udp", 1},
		"0.0.0.0:53:5353/udp":  {netip.IPv4Unspecified(), 53, 5353, "udp", 1},
		"[::1]:65535:1/tcp":    {netip.IPv6Loopback(), 65535, 1, "tcp", 1},
		"192.0.2.1:1000:30000": {netip.MustParseAddr("192.0.2.1"), 1000, 30000, "tcp", 1},
		"0:80":                 {netip.Addr{}, 0, 80, "tcp", 1},
		"[::]:0:80/udp":        {netip.IPv6Unspecified(), 0, 80, "udp", 1},
		"80-82:90-92":          {netip.Addr{}, 80, 90, "tcp", 3},
		"127.0.0.1:80-80:9-9":  {netip.AddrFrom4([4]byte{127, 0, 0, 1}), 80, 9, "tcp", 1},
	} {
		got, err := ParseForward(s)
		assert.NilError(t, err, s)
		assert.Assert(t, got == want, "%s: %+v", s, got)
	}
}

func TestParseForwardRefuses(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"":                   `"": must have the form [HOSTIP:]HOSTPORT:NODEPORT[/tcp|/udp]`,
		"80":                 `"80": must have the form [HOSTIP:]HOSTPORT:NODEPORT[/tcp|/udp]`,
		"80:":                `node port "": must be a number between 1 and 65535`,
		"00:80":              `host port "00": must be a number between 1 and 65535`,
		"80:0":               `node port "0": must be a number between 1 and 65535`,
		"80-82:90-91":        `"80-82:90-91": 80-82 and 90-91 are ranges of different lengths`,
		"80-82:90":           `"80-82:90": 80-82 and 90 are ranges of different lengths`,
		"0-2:90-92":          `host port "0": must be a number between 1 and 65535`,
		"82-80:90":           `host port range "82-80": ends before it begins`,
		"65535-65536:1-2":    `host port "65536": must be a number between 1 and 65535`,
		"080:80":             `host port "080": must be a number between 1 and 65535`,
		"80:65536":           `node port "65536": must be a number between 1 and 65535`,
		"80:+80":             `node port "+80": must be a number between 1 and 65535`,
		"80:80/sctp":         `protocol "sctp": must be tcp or udp`,
		"80:80/":             `protocol "": must be tcp or udp`,
		"localhost:80:80":    `host address "localhost": not an IP address`,
		"::1:80:80":          `host address "::1": IPv6 addresses, and only these, must be in brackets`,
		"[127.0.0.1]:80:80":  `host address "[127.0.0.1]": IPv6 addresses, and only these, must be in brackets`,
		"[::1:80:80":         `host address "[::1": missing closing bracket`,
		"[fe80::1%lo]:80:80": `host address "[fe80::1%lo]": addresses with a zone are not supported`,
		":80:80":             `host address "": not an IP address`,
	} {
		_, err := ParseForward(s)
		assert.Error(t, err, want)
	}
}

func TestParsePickRange(t *testing.T) {
	t.Parallel()
	first, last, err := ParsePickRange("20000-29999")
	assert.NilError(t, err)
	assert.Assert(t, first == 20000 && last == 29999)
	for _, s := range []string{"", "x-1", "1-2", "30000-20000", "20000-70000", "20000-", "0"} {
		_, _, err := ParsePickRange(s)
		assert.Assert(t, err != nil, s)
	}
}

func FuzzParseForward(f *testing.F) {
	for _, s := range []string{"8080:80", "[::1]:1:2/udp", "0.0.0.0:1:2/tcp", "[::ffff:1.2.3.4]:1:2", "]:[/", "0:1", "1-2:3-4/udp"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseForward(s)
		if err != nil {
			return
		}
		b, err := ParseForward(a.String())
		if err != nil || a != b {
			t.Fatalf("%q: %+v, and its own text %q: %+v, %v", s, a, a.String(), b, err)
		}
	})
}
