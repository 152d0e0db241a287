package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/flannel-io/flannel/pkg/subnet"
)

// backends are the backends linked into this program.
var backends = []string{"host-gw", "vxlan", "wireguard"}

// loadNetConfig reads and validates the network configuration at path.
func loadNetConfig(path string) (*subnet.Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("network configuration: %w", err)
	}
	config, err := parseNetConfig(data)
	if err != nil {
		return nil, fmt.Errorf("network configuration %s: %w", path, err)
	}
	return config, nil
}

// parseNetConfig parses the network configuration. It rejects unknown keys, which
// flannel ignores, because a misspelled key would cause a wrong network.
func parseNetConfig(data []byte) (*subnet.Config, error) {
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if err := strict.Decode(new(subnet.Config)); err != nil {
		return nil, err
	}
	config, err := subnet.ParseConfig(string(data))
	if err != nil {
		return nil, err
	}

	var errs []error
	if !config.EnableIPv4 && !config.EnableIPv6 {
		errs = append(errs, errors.New("neither EnableIPv4 nor EnableIPv6 is set"))
	}
	if config.EnableIPv4 && config.Network.Empty() {
		errs = append(errs, errors.New("EnableIPv4 is set but Network is not"))
	}
	if config.EnableIPv6 && config.IPv6Network.Empty() {
		errs = append(errs, errors.New("EnableIPv6 is set but IPv6Network is not"))
	}
	if !slices.Contains(backends, strings.ToLower(config.BackendType)) {
		errs = append(errs, fmt.Errorf("backend type %q is not one of %s", config.BackendType, strings.Join(backends, ", ")))
	}
	return config, errors.Join(errs...)
}
