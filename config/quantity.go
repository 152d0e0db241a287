package config

import (
	"encoding/json"
	"errors"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Quantity is an amount as Kubernetes writes it: "1500m", "4Gi", 2. Empty: not given.
type Quantity string

// UnmarshalJSON takes numbers as well as text, for 2 and 0.5 are quantities.
func (q *Quantity) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		*q = Quantity(text)
		return nil
	}
	var n json.Number
	if json.Unmarshal(b, &n) != nil {
		return errors.New("want a quantity such as 2, 1500m or 4Gi")
	}
	*q = Quantity(n)
	return nil
}

// Milli is q in thousandths, rounded up; Value in whole units, rounded up. Both are 0 for what is empty or no quantity.
func (q Quantity) Milli() int64 { v, _ := q.parse(); return v.MilliValue() }

// Value: see Milli.
func (q Quantity) Value() int64 { v, _ := q.parse(); return v.Value() }

func (q Quantity) parse() (resource.Quantity, error) {
	if q == "" {
		return resource.Quantity{}, nil
	}
	return resource.ParseQuantity(string(q))
}
