package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"strings"

	"github.com/flannel-io/flannel/pkg/ip"
)

// previousLease is the content of the subnet file of an earlier run. It is needed
// to find the masquerading rules that the run left.
type previousLease struct {
	network, subnet   ip.IP4Net
	network6, subnet6 ip.IP6Net
}

// readSubnetFile reads the subnet file at path. If the file does not exist, it
// returns empty networks and no error.
func readSubnetFile(path string) (previousLease, error) {
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return previousLease{}, fmt.Errorf("subnet file: %w", err)
	}
	prev, err := parseSubnetFile(string(data))
	if err != nil {
		return previousLease{}, fmt.Errorf("subnet file %s: %w", path, err)
	}
	return prev, nil
}

func parseSubnetFile(text string) (previousLease, error) {
	// flannel's empty IPv6 network must contain a number; nil makes flannel panic.
	prev := previousLease{
		network6: ip.IP6Net{IP: (*ip.IP6)(big.NewInt(0))},
		subnet6:  ip.IP6Net{IP: (*ip.IP6)(big.NewInt(0))},
	}
	v4 := map[string]*ip.IP4Net{"FLANNEL_NETWORK": &prev.network, "FLANNEL_SUBNET": &prev.subnet}
	v6 := map[string]*ip.IP6Net{"FLANNEL_IPV6_NETWORK": &prev.network6, "FLANNEL_IPV6_SUBNET": &prev.subnet6}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		to4, is4 := v4[key]
		to6, is6 := v6[key]
		if !is4 && !is6 {
			continue
		}
		_, cidr, err := net.ParseCIDR(value)
		switch {
		case err != nil:
			return previousLease{}, fmt.Errorf("%s: %w", key, err)
		case is4 && cidr.IP.To4() != nil:
			*to4 = ip.FromIPNet(cidr)
		case is6 && cidr.IP.To4() == nil:
			*to6 = ip.FromIP6Net(cidr)
		default:
			return previousLease{}, fmt.Errorf("%s: %s is of the wrong address family", key, value)
		}
	}
	return prev, nil
}
