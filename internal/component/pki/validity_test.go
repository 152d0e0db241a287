package pki

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// TestRenewAt checks that short certificates are renewed early enough for running programs to read them.
func TestRenewAt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		life      time.Duration
		byKubelet bool
		left      time.Duration
	}{
		"a year":           {360 * day, false, 120 * day},
		"ten minutes":      {10*time.Minute + backdate, false, 6 * time.Minute},
		"by the kubelet":   {360 * day, true, 36 * day},
		"two hours":        {2 * time.Hour, false, 40 * time.Minute},
		"eighteen minutes": {18 * time.Minute, false, 6 * time.Minute},
	} {
		v := Validity{NotBefore: birth, NotAfter: birth.Add(c.life), ByKubelet: c.byKubelet}
		assert.Equal(t, v.NotAfter.Sub(v.RenewAt()), c.left, name)
	}
}

// TestLate checks that only certificates that programs may still use after their end are late.
func TestLate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after time.Duration
		late  bool
	}{
		"renewed in time":            {300 * day, false},
		"six minutes left":           {365*day - 6*time.Minute, false},
		"four minutes left":          {365*day - 4*time.Minute, true},
		"expired":                    {400 * day, true},
		"the clock was set back":     {-day, true},
		"nothing was renewed":        {day, false},
		"expired with its authority": {4000 * day, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, spec := newPKI(t)
			changes := ensure(t, dir, spec, birth.Add(c.after))
			assert.Equal(t, len(changes.Late) > 0, c.late, "%v", changes)
			if c.late {
				assert.DeepEqual(t, changes.Late, changes.Renewed)
			}
		})
	}
}

func TestValidities(t *testing.T) {
	t.Parallel()
	dir, spec := newPKI(t)
	all, err := Validities(dir, spec)
	assert.NilError(t, err)
	assert.Equal(t, len(all), len(spec.Authorities)+len(spec.Certificates))
	for _, v := range all {
		cert := certOf(t, dir, v.Name)
		assert.DeepEqual(t, v, Validity{Name: v.Name, NotBefore: cert.NotBefore, NotAfter: cert.NotAfter})
	}

	assert.NilError(t, os.WriteFile(filepath.Join(dir, admin+certSuffix), []byte("damaged"), 0o600))
	assert.NilError(t, os.Remove(filepath.Join(dir, proxy+certSuffix)))
	some, err := Validities(dir, spec)
	assert.Equal(t, len(some), len(all)-2)
	assert.Check(t, is.ErrorContains(err, "certificate admin: no certificate in PEM format"))
	assert.Check(t, is.ErrorIs(err, os.ErrNotExist))
}

// TestKeyBeforeCertificate checks the files of the kubelet, which contain the key and the certificate in any order.
func TestKeyBeforeCertificate(t *testing.T) {
	t.Parallel()
	dir, _ := newPKI(t)
	both := append(read(t, dir, admin+keySuffix), read(t, dir, admin+certSuffix)...)
	v, err := ParseValidity("both", both)
	assert.NilError(t, err)
	assert.Equal(t, v.NotAfter, certOf(t, dir, admin).NotAfter)
}
