package journal

import (
	"bytes"
	"errors"
	"io"
	"testing"

	systemd "github.com/coreos/go-systemd/v22/journal"
	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"
)

func TestFields(t *testing.T) {
	t.Parallel()
	var message string
	var priority systemd.Priority
	var vars map[string]string
	l := logrus.New()
	l.SetOutput(io.Discard)
	l.AddHook(&hook{send: func(m string, p systemd.Priority, v map[string]string) error {
		message, priority, vars = m, p, v
		return nil
	}})
	l.WithError(errors.New("no")).WithField("unit", "kubelet").WithField("_9exit-code", 1).Warn("ended")
	assert.Equal(t, message, `ended _9exit-code="1" error="no" unit="kubelet"`)
	assert.Equal(t, priority, systemd.PriWarning)
	assert.DeepEqual(t, vars, map[string]string{
		"SYSLOG_IDENTIFIER": "rootlessnode", "COMPONENT": "kubelet", "EXIT_CODE": "1", "ERROR": "no",
	})
}

func TestJournalUnavailable(t *testing.T) {
	t.Parallel()
	var lines bytes.Buffer
	l := logrus.New()
	l.SetOutput(io.Discard)
	l.AddHook(&hook{send: func(string, systemd.Priority, map[string]string) error { return errors.New("no journal") }, fallback: &lines})
	l.WithField("component", "etcd").Info("started")
	assert.Equal(t, lines.String(), "started component=\"etcd\"\n")
}

// TestAttachWithoutJournal checks that Attach changes nothing if standard error is not connected to the journal.
func TestAttachWithoutJournal(t *testing.T) {
	t.Parallel()
	var lines bytes.Buffer
	l := logrus.New()
	l.SetOutput(&lines)
	Attach(l)
	l.Info("hello")
	assert.Assert(t, lines.Len() > 0)
}
