package config

import (
	"encoding/json"
	"errors"
)

// AutoBool is a switch with three positions: on, off, or what the host can do. A config writes it as true, false or auto.
type AutoBool string

// Positions of an AutoBool. The zero value is Auto.
const (
	Auto AutoBool = "auto"
	On   AutoBool = "true"
	Off  AutoBool = "false"
)

// UnmarshalJSON takes true and false as well as text.
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
	return errors.New("want auto, true or false, have " + string(b))
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
