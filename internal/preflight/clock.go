package preflight

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"os"
	"runtime/debug"
	"time"
)

// buildTime returns the time of the commit that this program was built from, or the zero time if it is unknown.
func buildTime() time.Time {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return time.Time{}
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.time" {
			t, _ := time.Parse(time.RFC3339, s.Value)
			return t
		}
	}
	return time.Time{}
}

// checkClock compares the clock with the time of the build and with the certificate authority of the cluster.
func checkClock(_ context.Context, h *host) []Finding {
	now := h.probes.Now()
	const format = "2006-01-02 15:04:05 MST"
	wrong := func(format string, args ...any) []Finding {
		return []Finding{fail(format, args...).hint("# set the clock, for example with a time service:", asRoot("timedatectl set-ntp true"))}
	}
	// The clocks of the machines that built the program and that runs it may differ.
	const tolerance = 24 * time.Hour
	ca := certificate(h.in.Data.ClusterCA())
	switch {
	case ca == nil:
	case now.Before(ca.NotBefore):
		return wrong("the clock is wrong: it is %s, but the cluster was created after %s", now.UTC().Format(format), ca.NotBefore.UTC().Format(format))
	case now.After(ca.NotAfter):
		return wrong("it is %s, but the cluster's certificate authority is valid only until %s", now.UTC().Format(format), ca.NotAfter.UTC().Format(format))
	}
	if built := h.probes.BuildTime(); now.Before(built.Add(-tolerance)) {
		found := wrong("the clock may be wrong: it is %s, but this program was built on %s", now.UTC().Format(format), built.UTC().Format(format))
		found[0].Level = LevelWarn
		return found
	}
	return []Finding{pass("the clock is plausible: %s", now.UTC().Format(format))}
}

// certificate returns the certificate in a file, or nil if there is none.
func certificate(file string) *x509.Certificate {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil
	}
	return c
}
