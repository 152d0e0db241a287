package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Finding is a phrase of the word list in a file.
type Finding struct {
	File string
	Line int
	// Found is the phrase as it is in the file.
	Found string
	// Write is the replacement.
	Write string
}

func (f Finding) String() string {
	return fmt.Sprintf("%s:%d: %q: write %s", f.File, f.Line, f.Found, f.Write)
}

// marker in a line allows its words. A reason follows it.
var marker = regexp.MustCompile(`words:allow\s+\w`)

// block is text whose phrases may continue from one line to the next.
type block struct {
	kind kind
	text string
	// line is the number of the first line.
	line int
	// single is set if all of text is on that line, whatever newlines it contains.
	single bool
}

// lineOf returns the number of the line of text[offset].
func (b block) lineOf(offset int) int {
	if b.single {
		return b.line
	}
	return b.line + strings.Count(b.text[:offset], "\n")
}

// Check returns the findings in a file, in the order of its lines. The name decides how text is read; other files have no findings.
func Check(name string, text []byte) ([]Finding, error) {
	blocks, err := read(name, text)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(string(text), "\n")
	var all []Finding
	for _, b := range blocks {
		for _, f := range b.check() {
			f.File = name
			if !marker.MatchString(lines[f.Line-1]) && !isAllowed(f) {
				all = append(all, f)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Finding) int { return a.Line - b.Line })
	return all, nil
}

// check applies every rule to b. A match with a non-empty capture group is allowed. Of matches that overlap, the rule that is first in
// the list counts.
func (b block) check() []Finding {
	var all []Finding
	var taken [][]int
	for _, r := range rules {
		if r.kinds != 0 && r.kinds&b.kind == 0 {
			continue
		}
		for _, m := range r.pattern.FindAllStringSubmatchIndex(b.text, -1) {
			if slices.ContainsFunc(m[2:], func(i int) bool { return i >= 0 }) {
				continue
			}
			if slices.ContainsFunc(taken, func(t []int) bool { return m[0] < t[1] && t[0] < m[1] }) {
				continue
			}
			taken = append(taken, m[:2])
			phrase := b.text[m[0]:m[1]]
			start := m[0] + len(phrase) - len(strings.TrimLeft(phrase, " \t\n.:;,"))
			all = append(all, Finding{
				Line:  b.lineOf(start),
				Found: strings.Join(strings.Fields(b.text[start:m[1]]), " "),
				Write: r.write,
			})
		}
	}
	return all
}

func isAllowed(f Finding) bool {
	return slices.ContainsFunc(allowed, func(a allowance) bool {
		return a.file == f.File && (a.found == "" || strings.EqualFold(a.found, f.Found))
	})
}

// read returns the text of a file that is checked.
func read(name string, text []byte) ([]block, error) {
	if slices.Contains(strings.Split(path.Dir(name), "/"), "testdata") {
		return nil, nil
	}
	switch ext := path.Ext(name); {
	case ext == ".go":
		return readGo(name, text)
	case ext == ".md":
		return paragraphs(string(text)), nil
	case ext == ".sh", bytes.HasPrefix(text, []byte("#!")):
		return append(hashComments(string(text)), messages(string(text))...), nil
	case ext == ".yaml", ext == ".yml", path.Base(name) == "Makefile":
		return hashComments(string(text)), nil
	}
	return nil, nil
}

// readGo returns the comments of a Go file and its string literals of more than one word.
func readGo(name string, text []byte) ([]block, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var all []block
	for _, group := range file.Comments {
		var lines []string
		for _, c := range group.List {
			line, isLine := strings.CutPrefix(c.Text, "//")
			if !isLine {
				line = strings.TrimSuffix(strings.TrimPrefix(c.Text, "/*"), "*/")
			}
			lines = append(lines, strings.TrimPrefix(line, " "))
		}
		all = append(all, block{kind: goComment, text: strings.Join(lines, "\n"), line: set.Position(group.Pos()).Line})
	}
	ast.Inspect(file, func(n ast.Node) bool {
		literal, ok := n.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		// A string without a space is a name or other data.
		if value, err := strconv.Unquote(literal.Value); err == nil && strings.ContainsAny(value, " \t\n") {
			all = append(all, block{kind: goString, text: value, line: set.Position(literal.Pos()).Line, single: literal.Value[0] == '"'})
		}
		return true
	})
	return all, nil
}

// paragraphs returns the parts of a Markdown page between empty lines.
func paragraphs(text string) []block {
	var all []block
	open := false
	for i, line := range strings.Split(text, "\n") {
		switch {
		case strings.TrimSpace(line) == "":
			open = false
		case open:
			all[len(all)-1].text += "\n" + line
		default:
			all = append(all, block{kind: markdown, text: line, line: i + 1})
			open = true
		}
	}
	return all
}

// hashComment matches a line with a comment of a shell script, a YAML file or a Makefile.
var hashComment = regexp.MustCompile(`^(.*?)(?:^|\s)#+(?:\s+(.*))?$`)

// hashComments returns the comments of a file in which a comment starts with "#". Comments on consecutive lines without other text are
// one block.
func hashComments(text string) []block {
	var all []block
	open := false
	for i, line := range strings.Split(text, "\n") {
		m := hashComment.FindStringSubmatch(line)
		if m == nil {
			open = false
			continue
		}
		whole := strings.TrimSpace(m[1]) == ""
		if whole && open {
			all[len(all)-1].text += "\n" + m[2]
			continue
		}
		all = append(all, block{kind: hash, text: m[2], line: i + 1})
		open = whole
	}
	return all
}

// message matches the commands with which scripts of this tree print messages.
var message = regexp.MustCompile(`^[^#]*\b(?:say|die|echo|printf|fail)\s.*$`)

// messages returns the lines of a shell script that print messages.
func messages(text string) []block {
	var all []block
	for i, line := range strings.Split(text, "\n") {
		if message.MatchString(line) {
			all = append(all, block{kind: shellMessage, text: strings.TrimSpace(line), line: i + 1})
		}
	}
	return all
}
