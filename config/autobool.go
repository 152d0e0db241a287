package config

import (
	"encoding/json"
	"errors"
)

// AutoBool is a setting with three values: on, off, or auto for what the host supports. In a file: true, false or auto.
type AutoBool string

// Values of an AutoBool. The zero value means Auto.
const (
	Auto AutoBool = "auto"
	On   AutoBool = "true"
	Off  AutoBool = "false"
)

// UnmarshalJSON accepts booleans and strings.
func (a *AutoBool) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) != nil {
		text = string(b)
	}
	switch v := AutoBool(text); v {
	case Auto, On, Off:
		*a = v
		return nil
	}
	return errors.New("must be auto, true or false, got " + string(b))
}

// MarshalJSON writes on and off as booleans.
func (a AutoBool) MarshalJSON() ([]byte, error) {
	switch a {
	case On, Off:
		return []byte(a), nil
	}
	return json.Marshal(string(Auto))
}

// Choices returns the values to try, the preferred one first.
func (a AutoBool) Choices() []bool {
	switch a {
	case On:
		return []bool{true}
	case Off:
		return []bool{false}
	}
	return []bool{true, false}
}
