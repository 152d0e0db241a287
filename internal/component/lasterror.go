package component

import (
	"regexp"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// fatalLines match the lines with which programs report why they end, the most precise ones first. The first group is the
// text without time and source position.
var fatalLines = []*regexp.Regexp{
	regexp.MustCompile(`\t(?:fatal|panic)\t(?:\S+\.go:\d+\t)?(.*)`),                    // zap (etcd)
	regexp.MustCompile(`\blevel=(?:fatal|panic) (.*)`),                                 // logrus (containerd, CRI-O)
	regexp.MustCompile(`^F\d{4} \S+ +\d+ \S+\] (.*)`),                                  // klog
	regexp.MustCompile(`^E\d{4} \S+ +\d+ \S+\] ("command failed" .*)`),                 // Kubernetes' commands
	regexp.MustCompile(`^(unexpected fault address .*)`),                               // Go, a mapped file is too short
	regexp.MustCompile(`^(?:[\w-]+: )?(?:panic|fatal error|Error|error): (.*)`),        // Go, cobra
	regexp.MustCompile(`\terror\t(?:\S+\.go:\d+\t)?(.*)`),                              // zap
	regexp.MustCompile(`^E\d{4} \S+ +\d+ \S+\] (.*)`),                                  // klog
	regexp.MustCompile(`\blevel=error (.*)`),                                           // logrus
	regexp.MustCompile(`^(\S+: .*(?:No such file or directory|Permission denied).*)$`), // the dynamic loader
}

// lastErrorBytes is the maximum length of LastError.
const lastErrorBytes = 400

// LastError returns the last line in which a program reported why it ended, without time and source position, or "".
func LastError(lines []string) string {
	for _, pattern := range fatalLines {
		for i := len(lines) - 1; i >= 0; i-- {
			if m := pattern.FindStringSubmatch(lines[i]); m != nil {
				text := strings.ReplaceAll(m[1], "\t", " ")
				return strings.ToValidUTF8(text[:min(len(text), lastErrorBytes)], "")
			}
		}
	}
	return ""
}

// Fault is a known cause for which a component ends.
type Fault struct {
	// Texts are parts of the line that reports it.
	Texts []string
	// Reason is a CamelCase word for conditions, and Fix how to fix it.
	Reason string
	Fix    errdefs.Hint
}

// hostFaults are faults of the host, which every component may report.
var hostFaults = []Fault{
	{[]string{"read-only file system"}, "DataReadOnly", errdefs.Text("# make the file system of the data dir writable")},
	{[]string{"no space left on device", "disk quota exceeded"}, "DiskFull", errdefs.Text("# free space in the file system of the data dir")},
	{[]string{"too many open files"}, "TooManyOpenFiles", errdefs.Do(errdefs.CheckHost)},
}

// FindFault returns the fault that the line reports: one of the component's, or one of the host. ok is false if it is not
// known.
func FindFault(line string, own []Fault) (f Fault, ok bool) {
	for _, all := range [][]Fault{hostFaults, own} {
		for _, f := range all {
			for _, text := range f.Texts {
				if strings.Contains(line, text) {
					return f, true
				}
			}
		}
	}
	return Fault{}, false
}
