package config

import (
	"encoding/json"
	"errors"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Quantity is a Kubernetes quantity: "1500m", "4Gi", 2. Empty means not set.
type Quantity string

// UnmarshalJSON accepts strings and numbers, because 2 and 0.5 are quantities.
func (q *Quantity) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		*q = Quantity(text)
		return nil
	}
	var n json.Number
	if json.Unmarshal(b, &n) != nil {
		return errors.New("must be a quantity such as 2, 1500m or 4Gi")
	}
	*q = Quantity(n)
	return nil
}

// Milli returns q in thousandths, rounded up. It returns 0 if q is empty or invalid.
func (q Quantity) Milli() int64 { v, _ := q.parse(); return v.MilliValue() }

// Value returns q in whole units, rounded up. It returns 0 if q is empty or invalid.
func (q Quantity) Value() int64 { v, _ := q.parse(); return v.Value() }

func (q Quantity) parse() (resource.Quantity, error) {
	if q == "" {
		return resource.Quantity{}, nil
	}
	return resource.ParseQuantity(string(q))
}
