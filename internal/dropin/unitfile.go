package dropin

import "strings"

// whitespace contains the characters that systemd treats as whitespace.
const whitespace = " \t\n\r"

// assignment is one "Key=Value" of a unit file. value is literal text with quotes, escapes, % and $.
type assignment struct{ section, key, value string }

// parseUnit parses the text of a unit file as systemd does (systemd.syntax(7)): a line that ends with a backslash continues on
// the next line, comments between the two are skipped, and other lines without an assignment are ignored. It does not use
// go-systemd's parser, because that rejects lines of more than 2048 bytes, which a kubelet's command can have, and keeps such
// comments.
func parseUnit(text string) []assignment {
	var all []assignment
	section, begun := "", ""
	for raw := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		line := strings.TrimRight(raw, "\r\n")
		if bare := strings.TrimLeft(line, whitespace); bare != "" && (bare[0] == '#' || bare[0] == ';') {
			continue
		}
		line = begun + line // keep leading blanks, because they may be inside a quote
		if continues(line) {
			begun = line[:len(line)-1] + " "
			continue
		}
		begun = ""
		all, section = addLine(all, section, line)
	}
	all, _ = addLine(all, section, begun)
	return all
}

func addLine(all []assignment, section, line string) ([]assignment, string) {
	line = strings.Trim(line, whitespace)
	if strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]") {
		return all, line[1 : len(line)-1]
	}
	if key, value, ok := strings.Cut(line, "="); ok {
		all = append(all, assignment{section, strings.TrimRight(key, whitespace), strings.TrimLeft(value, whitespace)})
	}
	return all, section
}

// continues reports whether a line ends with an unescaped backslash.
func continues(line string) bool {
	return (len(line)-len(strings.TrimRight(line, `\`)))%2 == 1
}

// merged returns the values of one list setting of the service in all files, in order. An empty value resets the list
// (systemd.unit(5)).
func merged(files []string, key string) []string {
	var values []string
	for _, text := range files {
		for _, a := range parseUnit(text) {
			switch {
			case a.section != "Service" || a.key != key:
			case a.value == "":
				values = nil
			default:
				values = append(values, a.value)
			}
		}
	}
	return values
}
