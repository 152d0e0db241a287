package main

import (
	"errors"
	"testing"

	"gotest.tools/v3/assert"
)

// Control characters in messages of an API server or another host do not reach the terminal.
func TestErrorsAreSanitized(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.printError(errors.New("get nodes: \x1b]0;title\x07\u009b31mred\ttab\r\nnext\x00"))
	assert.Equal(t, c.err.String(), "error: get nodes: ?]0;title??31mred\ttab?\nerror: next?\n")
}
