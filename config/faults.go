package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// faults collects errors, so that all of them are reported at once.
type faults struct{ list []error }

func (fs *faults) add(field, hint, format string, args ...any) {
	err := fmt.Errorf(format, args...)
	if field != "" {
		err = fmt.Errorf("%s: %w", field, err)
	}
	fs.list = append(fs.list, errdefs.WithHint(err, hint))
}

// has reports whether a fault of the field was added.
func (fs *faults) has(field string) bool {
	return slices.ContainsFunc(fs.list, func(err error) bool { return strings.HasPrefix(err.Error(), field+":") })
}

func (fs *faults) err() error { return errors.Join(fs.list...) }

// prefixEach adds source as a prefix to each of the joined errors and keeps their hints.
func prefixEach(source string, err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return fmt.Errorf("%s: %w", source, err)
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, fmt.Errorf("%s: %w", source, e))
	}
	return errors.Join(out...)
}
