package outcome

import (
	"encoding/xml"
	"fmt"
	"io"
	"time"
)

type (
	junitSuites struct {
		XMLName xml.Name `xml:"testsuites"`
		Suite   junitSuite
	}
	junitSuite struct {
		XMLName  xml.Name    `xml:"testsuite"`
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Time     string      `xml:"time,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name      string       `xml:"name,attr"`
		Class     string       `xml:"classname,attr"`
		Time      string       `xml:"time,attr"`
		Failure   *junitReason `xml:"failure"`
		Skipped   *junitReason `xml:"skipped"`
		SystemOut string       `xml:"system-out,omitempty"`
	}
	junitReason struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes the results of run as a test suite named name. It writes the raw results and not the verdict, because JUnit has no
// expected failures. encoding/xml replaces characters that are invalid in XML by U+FFFD.
func WriteJUnit(w io.Writer, name string, run Run) error {
	f := Figures(name, run, nil)
	suite := junitSuite{
		Name: name, Tests: f.Selected, Failures: f.Failed, Skipped: f.Skipped,
		Time: seconds(elapsedOr(run.Elapsed, f.Duration)),
	}
	for _, s := range run.Specs {
		c := junitCase{Name: s.Name, Class: name, Time: seconds(s.Duration)}
		switch s.outcome() {
		case Failed:
			c.Failure = &junitReason{Message: firstLine(s.Message), Text: s.Message + "\n" + s.Location}
		case Skipped:
			c.Skipped = &junitReason{Message: s.Message}
		case Flaked:
			c.SystemOut = "passed at the second try; first failure: " + s.Message
		}
		suite.Cases = append(suite.Cases, c)
	}
	out, err := xml.MarshalIndent(junitSuites{Suite: suite}, "", " ")
	if err != nil {
		return fmt.Errorf("encode JUnit report %q: %w", name, err)
	}
	if _, err := fmt.Fprintf(w, "%s%s\n", xml.Header, out); err != nil {
		return fmt.Errorf("write JUnit report %q: %w", name, err)
	}
	return nil
}

func seconds(d time.Duration) string {
	return fmt.Sprintf("%.3f", d.Seconds())
}

// elapsedOr returns the elapsed time if it is known, otherwise the sum of the durations of all specs.
func elapsedOr(elapsed, sum time.Duration) time.Duration {
	if elapsed > 0 {
		return elapsed
	}
	return sum
}
