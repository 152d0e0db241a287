// Command words checks the language of the tree against a word list. It reads the comments and string literals of Go files, Markdown
// pages, the comments and messages of shell scripts, and the comments of YAML files and Makefiles. Each finding names the words to
// avoid and what to write instead.
//
//	go run ./test/words             # the whole tree
//	go run ./test/words pkg/child   # these directories
//
// A line that must contain the words of another project has a comment "words:allow REASON". For text that cannot have a comment, add an
// entry to the table allowed.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	found, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(2)
	}
	if found > 0 {
		fmt.Fprintf(os.Stderr, "%d findings\n", found)
		os.Exit(1)
	}
}

// run prints the findings in dirs, or in the whole tree if dirs is empty, and returns their number.
func run(dirs []string) (int, error) {
	top, err := git("rev-parse", "--show-toplevel")
	if err != nil {
		return 0, err
	}
	root := strings.TrimSpace(string(top))
	args := []string{"ls-files", "-z", "--full-name", "--cached", "--others", "--exclude-standard", "--"}
	if len(dirs) == 0 {
		args = append(args, ":/")
	}
	names, err := git(append(args, dirs...)...)
	if err != nil {
		return 0, err
	}
	found := 0
	for _, name := range sorted(names) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, and the deletion is not committed yet
		}
		if err != nil {
			return 0, err
		}
		all, err := Check(name, text)
		if err != nil {
			return 0, err
		}
		for _, f := range all {
			fmt.Println(f)
		}
		found += len(all)
	}
	return found, nil
}

func git(args ...string) ([]byte, error) {
	cmd := exec.Command("git", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git %s: %w", args[0], err)
	}
	return out, nil
}

// sorted splits names at NUL bytes and returns them in order, without duplicates.
func sorted(names []byte) []string {
	var all []string
	for _, name := range bytes.Split(names, []byte{0}) {
		if len(name) > 0 {
			all = append(all, string(name))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
