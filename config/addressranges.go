package config

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
)

// AddressRanges is a list of addresses and CIDRs. In a file it can also be true, for all addresses, or false, for none.
type AddressRanges []string

// AllAddresses returns the ranges for true: all IPv4 and IPv6 addresses.
func AllAddresses() AddressRanges { return AddressRanges{"0.0.0.0/0", "::/0"} }

// UnmarshalJSON accepts true, false or a list. It also accepts the lists ["true"] and ["false"], because --set converts the
// words to these.
func (r *AddressRanges) UnmarshalJSON(b []byte) error {
	var list []string
	var all bool
	switch {
	case json.Unmarshal(b, &all) == nil:
	case json.Unmarshal(b, &list) != nil:
		return errors.New("must be true, false, or a list of addresses and CIDRs")
	case len(list) == 1 && list[0] == "true":
		all = true
	case len(list) == 0, len(list) == 1 && list[0] == "false":
	default:
		*r = list
		return nil
	}
	*r = nil
	if all {
		*r = AllAddresses()
	}
	return nil
}

// MarshalJSON writes true for all addresses, false for none, otherwise a list.
func (r AddressRanges) MarshalJSON() ([]byte, error) {
	switch {
	case len(r) == 0:
		return []byte("false"), nil
	case slices.Equal(r, AllAddresses()):
		return []byte("true"), nil
	}
	return json.Marshal([]string(r))
}

// Prefixes returns the ranges. Invalid entries are left out.
func (r AddressRanges) Prefixes() []netip.Prefix {
	list := []netip.Prefix{}
	for _, text := range r {
		if p, ok := parseRange(text); ok {
			list = append(list, p)
		}
	}
	return list
}

// parseRange parses an address or a CIDR.
func parseRange(text string) (netip.Prefix, bool) {
	if ip, err := netip.ParseAddr(text); err == nil && ip.Zone() == "" {
		ip = ip.Unmap()
		return netip.PrefixFrom(ip, ip.BitLen()), true
	}
	p, err := netip.ParsePrefix(text)
	return p.Masked(), err == nil
}
