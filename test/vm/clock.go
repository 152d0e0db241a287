package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// clock checks that a node of dev stays usable when the clock of the machine jumps by a day, forwards and back.
func (g *guest) clock(ctx context.Context) error {
	if _, err := g.login(ctx, patience, fmt.Sprintf("%s up --timeout %v", nodeProgram, patience)); err != nil {
		return err
	}
	var errs []error
	for _, jump := range []string{"+1 day", "-1 day"} {
		if _, err := g.root(ctx, "date -s '"+jump+"'"); err != nil {
			errs = append(errs, err)
			break
		}
		errs = append(errs, g.within(ctx, patience, "a usable node after a jump by "+jump, func() error { return g.writable(ctx) }))
	}
	_, err := g.dev(ctx, nodeProgram+" down")
	return errors.Join(append(errs, err)...)
}

// writable checks that the node of dev is ready and that its API accepts writes.
func (g *guest) writable(ctx context.Context) error {
	if _, err := g.dev(ctx, nodeProgram+" kubectl annotate --overwrite node --all clock=$(date +%s)"); err != nil {
		return err
	}
	out, err := g.dev(ctx, nodeProgram+" status -o json")
	if err == nil && !strings.Contains(out, `"state": "ready"`) {
		err = errors.New("the node is not ready")
	}
	return err
}
