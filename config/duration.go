package config

import (
	"encoding/json"
	"fmt"
	"time"
)

// Duration is a time.Duration in Go's text format: "90s", "8760h".
type Duration time.Duration

// D returns d as a time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

// MarshalJSON writes d in the format of time.Duration.String.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads a string in the format of time.ParseDuration.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("duration %s: must be a string such as \"90s\"", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("duration %q: must be a number with a unit, such as \"90s\" or \"24h\"", s)
	}
	*d = Duration(v)
	return nil
}
