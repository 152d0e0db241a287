package dropin

import (
	"errors"
	"fmt"
	"strings"
)

// command is one command of an ExecStart line, in systemd's syntax.
type command struct {
	// prefixes are the special characters before the program, without @.
	prefixes string
	// argv0 is the word after the program if the prefixes contain @: the argv[0] of the program.
	argv0 string
	// program and args are literal text.
	program, args string
}

// special are the special characters before a program (systemd.service(5)).
const special = "@-:+!|"

var errQuote = errors.New("missing closing quote")

// splitCommands splits the value of one ExecStart into commands. They are separated by an unquoted word ";".
func splitCommands(value string) ([]command, error) {
	var all []command
	rest := value
	for strings.Trim(rest, whitespace) != "" {
		var c command
		var err error
		if c, rest, err = nextCommand(rest); err != nil {
			return nil, fmt.Errorf("%w: %s", err, value)
		}
		all = append(all, c)
	}
	return all, nil
}

func nextCommand(text string) (c command, rest string, err error) {
	first, rest, err := nextWord(text)
	if err != nil {
		return c, "", err
	}
	c.prefixes, c.program = splitPrefixes(first)
	if strings.Trim(c.program, `"'`) == "" || c.program == ";" {
		return c, "", errors.New("no program")
	}
	if strings.Contains(c.prefixes, "|") {
		return c, "", errors.New("a command that runs through a shell (|) is not supported")
	}
	if strings.Contains(c.prefixes, "@") {
		c.prefixes = strings.ReplaceAll(c.prefixes, "@", "")
		if c.argv0, rest, err = nextWord(rest); err != nil {
			return c, "", err
		}
		if c.argv0 == "" || c.argv0 == ";" {
			return c, "", errors.New("@ requires a second word")
		}
	}
	c.args, rest, err = untilSeparator(rest)
	return c, rest, err
}

// untilSeparator returns the literal text before an unquoted word ";", and the text after it.
func untilSeparator(text string) (args, rest string, err error) {
	text = strings.TrimLeft(text, whitespace)
	for at := text; ; {
		word, after, err := nextWord(at)
		if err != nil {
			return "", "", err
		}
		if word == "" || word == ";" {
			return strings.TrimRight(text[:len(text)-len(strings.TrimLeft(at, whitespace))], whitespace), after, nil
		}
		at = after
	}
}

// nextWord returns the first word of text literally, with its quotes and escapes, and the remaining text. A quote may begin
// anywhere in a word. A backslash escapes the next character, also in quotes.
func nextWord(text string) (word, rest string, err error) {
	text = strings.TrimLeft(text, whitespace)
	var quote byte
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text):
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case strings.IndexByte(whitespace, c) >= 0:
			return text[:i], text[i:], nil
		}
	}
	if quote != 0 {
		return "", "", errQuote
	}
	return text, "", nil
}

// splitPrefixes separates the special characters from the word of a program. They may be after its opening quote.
func splitPrefixes(word string) (prefixes, program string) {
	quote := ""
	for i := 0; i < len(word); i++ {
		switch c := word[i]; {
		case strings.IndexByte(special, c) >= 0 && (c == '!' || strings.IndexByte(prefixes, c) < 0):
			prefixes += string(c)
		case quote == "" && (c == '"' || c == '\''):
			quote = string(c)
		default:
			return prefixes, quote + word[i:]
		}
	}
	return prefixes, quote
}

// wrap returns the command line that runs exe with arguments, followed by the original command. It escapes $ in the program,
// because that is now an argument, in which systemd replaces variables unless the prefix : is used.
func (c command) wrap(exe, arguments string) string {
	program := c.program
	if !strings.Contains(c.prefixes, ":") {
		program = strings.ReplaceAll(program, "$", "$$")
	}
	words := []string{c.prefixes + exe, arguments}
	if c.argv0 != "" {
		words = append(words, "--argv0", c.argv0)
	}
	words = append(words, "--", program)
	if c.args != "" {
		words = append(words, c.args)
	}
	return strings.Join(words, " ")
}

// quoteProgram quotes a path for use as the program of a command, in which systemd replaces specifiers but no variables.
func quoteProgram(path string) string {
	quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`).Replace(path)
	if quoted != path || strings.ContainsAny(path, whitespace+`'`) {
		return `"` + quoted + `"`
	}
	return path
}
