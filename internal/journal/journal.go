// Package journal writes a log to the systemd journal with structured fields, if standard error is connected to the journal.
package journal

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	systemd "github.com/coreos/go-systemd/v22/journal"
	"github.com/sirupsen/logrus"
)

// identifier is the SYSLOG_IDENTIFIER of all roles, which journalctl(1) shows before each line.
const identifier = "rootlessnode"

// Attach makes log write to the journal if standard error is connected to the journal (JOURNAL_STREAM, systemd.exec(5)) and the journal is
// available. The component of a message becomes the field COMPONENT. Otherwise Attach changes nothing.
func Attach(log *logrus.Logger) {
	if streams, err := systemd.StderrIsJournalStream(); err != nil || !streams || !systemd.Enabled() {
		return
	}
	log.SetOutput(io.Discard)
	log.AddHook(&hook{send: systemd.Send, fallback: os.Stderr})
}

type hook struct {
	send     func(message string, p systemd.Priority, vars map[string]string) error
	fallback io.Writer
}

// Levels implements logrus.Hook.
func (*hook) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook. If the journal does not accept a message, Fire writes it to standard error.
func (h *hook) Fire(e *logrus.Entry) error {
	text, vars := e.Message, map[string]string{"SYSLOG_IDENTIFIER": identifier}
	for _, k := range slices.Sorted(maps.Keys(e.Data)) {
		v := fmt.Sprint(e.Data[k])
		text += fmt.Sprintf(" %s=%q", k, v)
		if name := fieldName(k); name != "" {
			vars[name] = v
		}
	}
	if err := h.send(text, priorities[e.Level], vars); err != nil {
		_, err = fmt.Fprintln(h.fallback, text)
		return err
	}
	return nil
}

var priorities = map[logrus.Level]systemd.Priority{
	logrus.PanicLevel: systemd.PriCrit, logrus.FatalLevel: systemd.PriCrit, logrus.ErrorLevel: systemd.PriErr,
	logrus.WarnLevel: systemd.PriWarning, logrus.InfoLevel: systemd.PriInfo, logrus.DebugLevel: systemd.PriDebug,
	logrus.TraceLevel: systemd.PriDebug,
}

// unitKey is the supervisor's log field, and unitField its name in the journal. In the journal, systemd uses UNIT itself.
const unitKey, unitField = "unit", "COMPONENT"

// fieldName returns a valid name of a journal field for key: capital letters, digits and underscores, beginning with a letter
// (systemd.journal-fields(7)). It returns "" if key has no letter.
func fieldName(key string) string {
	if key == unitKey {
		return unitField
	}
	return strings.TrimLeft(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, key), "_0123456789")
}
