package portfwd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"gotest.tools/v3/assert"
)

func specOf(p int) port.Spec {
	return port.Spec{Proto: "tcp4", ParentIP: "127.0.0.1", ParentPort: p, ChildIP: "10.0.2.100", ChildPort: p}
}

func TestLedgerSurvivesAKill(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ports")
	l, err := openLedger(path)
	assert.NilError(t, err)
	t.Cleanup(l.close)
	for p := range 5 {
		assert.NilError(t, l.add(specOf(p)))
	}
	assert.NilError(t, l.remove(specOf(2)))
	info, err := os.Stat(path)
	assert.NilError(t, err)
	assert.Equal(t, info.Mode().Perm(), os.FileMode(0o600))

	raw, err := os.ReadFile(path)
	assert.NilError(t, err)
	assert.NilError(t, os.WriteFile(path, append(raw, "-tcp4 127.0.0.1 1 10.0.2"...), 0o600)) // cut short
	again, err := openLedger(path)
	assert.NilError(t, err)
	t.Cleanup(again.close)
	for p := range 5 {
		assert.Equal(t, again.has(specOf(p)), p != 2)
	}
	assert.NilError(t, again.keep(map[string]struct{}{specKey(specOf(1)): {}}))
	raw, err = os.ReadFile(path)
	assert.NilError(t, err)
	assert.Equal(t, string(raw), "#format 1\n+tcp4 127.0.0.1 1 10.0.2.100 1\n")
	assert.NilError(t, again.add(specOf(9)))
	last, err := openLedger(path)
	assert.NilError(t, err)
	t.Cleanup(last.close)
	assert.Assert(t, last.has(specOf(9)) && last.has(specOf(1)))
}

func TestLedgerStaysSmall(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ports")
	l, err := openLedger(path)
	assert.NilError(t, err)
	t.Cleanup(l.close)
	for range 10 * ledgerSlack {
		assert.NilError(t, l.add(specOf(1)))
		assert.NilError(t, l.remove(specOf(1)))
	}
	raw, err := os.ReadFile(path)
	assert.NilError(t, err)
	assert.Assert(t, strings.Count(string(raw), "\n") <= ledgerSlack+2)
}

func TestLedgerFaults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := openLedger(dir)
	assert.ErrorContains(t, err, "read port ledger")
	_, err = openLedger(filepath.Join(dir, "none", "ports"))
	assert.ErrorContains(t, err, "write port ledger")
	_, err = New(Options{Manager: newFakeManager(), Ledger: dir})
	assert.ErrorContains(t, err, "read port ledger")
	_, err = New(Options{})
	assert.ErrorContains(t, err, "Options.Manager is required")
}

func FuzzParseLedger(f *testing.F) {
	f.Add([]byte("+tcp4 127.0.0.1 1 10.0.2.100 1\n-tcp4 127.0.0.1 1 10.0.2.100 1\n+x"))
	f.Add([]byte("*tcp  8080  80\n"))
	f.Add([]byte("@tcp4 127.0.0.1 8080 Service ns a%20b uid\n!tcp4 127.0.0.1 8080\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		e := parseLedger(raw)
		for owner, p := range e.picks {
			assert.Assert(t, owner != "" && !strings.Contains(owner, "\n") && validPort(p))
		}
		for k := range e.specs {
			assert.Assert(t, k != "" && !strings.Contains(k, "\n"))
		}
		for b, o := range e.holders {
			againB, againO, ok := parseHolder(holderLine(b, o)[1:])
			assert.Assert(t, ok && againB == b && againO == o)
		}
		for k := range e.foreign {
			if s, ok := parseSpecKey(k); ok {
				again, ok := parseSpecKey(specKey(s))
				assert.Assert(t, ok && again == s)
			}
		}
	})
}

// Holders survive a restart, with any name, and also without a forward.
func TestLedgerKeepsHolders(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ports")
	l, err := openLedger(path)
	assert.NilError(t, err)
	t.Cleanup(l.close)
	b, ok := bindOf(specOf(1))
	assert.Assert(t, ok)
	owner := Owner{Kind: KindService, Namespace: "ns", Name: "odd\n@ name", UID: "u"}
	assert.NilError(t, l.add(specOf(1)))
	assert.NilError(t, l.hold(b, owner))
	for range 3 * ledgerSlack { // the file is rewritten in between
		assert.NilError(t, l.hold(Bind{TCP4, b.IP, 2}, owner))
		assert.NilError(t, l.hold(Bind{TCP4, b.IP, 2}, Owner{}))
	}
	assert.NilError(t, l.keep(map[string]struct{}{}))
	again, err := openLedger(path)
	assert.NilError(t, err)
	t.Cleanup(again.close)
	assert.Equal(t, len(again.holding()), 1)
	assert.Equal(t, again.holding()[b], owner)
	assert.Assert(t, !again.has(specOf(1)))
}

func FuzzSourceRanges(f *testing.F) {
	f.Add("192.0.2.0/24, 2001:db8::/32")
	f.Add("::ffff:192.0.2.0/120,0.0.0.0/0")
	f.Fuzz(func(t *testing.T, text string) {
		s := Service{Type: "LoadBalancer", Annotations: map[string]string{AnnotationSourceRanges: text}}
		ranges, err := s.sourceRanges()
		if err != nil {
			assert.Assert(t, ranges == "" && len(err.Error()) < 1024)
			return
		}
		assert.Equal(t, ranges == "", strings.TrimSpace(text) == "", "malformed ranges must not mean all clients")
		for _, p := range ranges.Prefixes() {
			assert.Assert(t, p.IsValid() && p == p.Masked() && !p.Addr().Is4In6())
		}
		assert.Equal(t, len(ranges.Prefixes()) > 0, ranges != "")
	})
}
