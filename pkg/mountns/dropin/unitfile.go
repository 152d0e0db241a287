package dropin

import "strings"

// whitespace is systemd's.
const whitespace = " \t\n\r"

// assignment is one "Key=Value" of a unit file. Value is as it is written: quotes, escapes, % and $ are the reader's.
type assignment struct{ section, key, value string }

// parseUnit reads the text of a unit file as systemd does (systemd.syntax(7)): a line that ends in a backslash goes on in
// the next, comments between the two being left out, and what is no assignment is passed over. go-systemd's reader is
// not used because it refuses lines of more than 2048 bytes, which a kubelet's command can have, and keeps such comments.
func parseUnit(text string) []assignment {
	var all []assignment
	section, begun := "", ""
	for raw := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		line := strings.TrimRight(raw, "\r\n")
		if bare := strings.TrimLeft(line, whitespace); bare != "" && (bare[0] == '#' || bare[0] == ';') {
			continue
		}
		line = begun + line // with the blanks that it begins with: they may stand in a quote
		if goesOn(line) {
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

// goesOn tells whether a line ends in a backslash that no other backslash escapes.
func goesOn(line string) bool {
	return (len(line)-len(strings.TrimRight(line, `\`)))%2 == 1
}

// merged returns the values of one list setting of the service over all files, in their order: an empty one takes back
// those before it (systemd.unit(5)).
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
