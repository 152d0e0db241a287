package datadir

import (
	"reflect"
	"slices"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Identity is the part of the record that describes the node to which the data belongs. A field is empty if the record was written by
// an earlier version, or before the value was known.
type Identity struct {
	// NodeName is the name of the Node object. HostName is the name that the host had when NodeName was chosen.
	NodeName string `json:"nodeName"`
	HostName string `json:"hostName"`
	// FormerNodes are the names of Node objects of earlier starts that the node removes from its cluster.
	FormerNodes []string `json:"formerNodes"`
	// Networks are the networks of the cluster; nil on a worker, whose networks are in the join record.
	Networks *Networks `json:"networks"`
	// APIPort is the port of the host that was picked for api.port 0; 0 if none was picked yet.
	APIPort int `json:"apiPort"`
	// EncryptionKey identifies the key with which the API server writes Secrets (pki.SecretKeys).
	EncryptionKey string `json:"encryptionKey"`
	// Versions are those of the last start.
	Versions Versions `json:"versions"`
	// Runtime is the container runtime (config.CRI.Runtime), and Snapshotter its snapshotter or storage driver.
	Runtime     string `json:"runtime"`
	Snapshotter string `json:"snapshotter"`
}

// Networks are settings of config.Cluster that cannot be changed after the cluster was created. The ranges of IPv6 are empty if the
// cluster has always been without IPv6.
type Networks struct {
	PodCIDR       string `json:"podCIDR"`
	ServiceCIDR   string `json:"serviceCIDR"`
	DNSAddress    string `json:"dnsAddress"`
	Domain        string `json:"domain"`
	PodCIDRv6     string `json:"podCIDRv6,omitempty"`
	ServiceCIDRv6 string `json:"serviceCIDRv6,omitempty"`
}

// NetworksOf returns the networks of a complete config.
func NetworksOf(c *config.NodeConfig) Networks {
	n := Networks{
		PodCIDR: c.Cluster.PodCIDR, ServiceCIDR: c.Cluster.ServiceCIDR, DNSAddress: c.Cluster.DNSAddress, Domain: c.Cluster.Domain,
	}
	if c.Network.IPv6 {
		n.PodCIDRv6, n.ServiceCIDRv6 = c.Cluster.PodCIDRv6, c.Cluster.ServiceCIDRv6
	}
	return n
}

// Change is a configuration field whose value differs from that with which the data was created.
type Change struct {
	// Field is the path of the field.
	Field, Was, Now string
}

// Changes returns the differences between was and now. IPv6 can be added to a cluster, and be disabled.
func (was Networks) Changes(now Networks) []Change {
	var changes []Change
	for _, c := range []Change{
		{"cluster.podCIDR", was.PodCIDR, now.PodCIDR},
		{"cluster.serviceCIDR", was.ServiceCIDR, now.ServiceCIDR},
		{"cluster.dnsAddress", was.DNSAddress, now.DNSAddress},
		{"cluster.domain", was.Domain, now.Domain},
		{"cluster.podCIDRv6", was.PodCIDRv6, now.PodCIDRv6},
		{"cluster.serviceCIDRv6", was.ServiceCIDRv6, now.ServiceCIDRv6},
	} {
		if c.Was != "" && c.Now != "" && c.Was != c.Now {
			changes = append(changes, c)
		}
	}
	return changes
}

// With returns the networks now, and those of was that now does not have.
func (was Networks) With(now Networks) Networks {
	if now.PodCIDRv6 == "" {
		now.PodCIDRv6, now.ServiceCIDRv6 = was.PodCIDRv6, was.ServiceCIDRv6
	}
	return now
}

// Rename sets the name of the Node object. If the node had another name before, the former one is added to FormerNodes.
func (i *Identity) Rename(name, hostName string) {
	if i.NodeName != "" && i.NodeName != name {
		i.FormerNodes = append(i.FormerNodes, i.NodeName)
	}
	i.FormerNodes = slices.DeleteFunc(i.FormerNodes, func(former string) bool { return former == name })
	i.NodeName, i.HostName = name, hostName
}

// ReadIdentity returns the identity in the record of a data dir. Unlike ReadRecord, it does not check the owner of the data, so that it can
// be used inside.
//
// Runs in: parent or child.
func ReadIdentity(d layout.Data) (Identity, error) {
	r, _, err := readRecord(d)
	if err != nil {
		return Identity{}, err
	}
	return r.Identity, nil
}

// UpdateIdentity changes the identity in the record of a data dir. The record must exist, and the caller must be its only writer.
//
// Runs in: parent or child.
func UpdateIdentity(d layout.Data, change func(*Identity)) error {
	return update(d, func(r *Record) { change(&r.Identity) })
}

// PutSettings replaces the settings and the requested config in the record of a data dir. The record must exist, and the caller must be
// its only writer.
//
// Runs in: parent.
func PutSettings(d layout.Data, s *config.Settings, requested string) error {
	return update(d, func(r *Record) { r.Settings, r.Requested = s, requested })
}

// PutWarnings replaces the warnings in the record of a data dir. The record must exist, and the caller must be its only writer.
//
// Runs in: parent.
func PutWarnings(d layout.Data, warnings []string) error {
	return update(d, func(r *Record) { r.Warnings = warnings })
}

// update changes the record of a data dir, which must exist.
func update(d layout.Data, change func(*Record)) error {
	was, _, err := readRecord(d)
	if err != nil {
		return err
	}
	now := *was
	now.FormerNodes = slices.Clone(was.FormerNodes)
	if was.Networks != nil {
		networks := *was.Networks
		now.Networks = &networks
	}
	change(&now)
	if reflect.DeepEqual(now, *was) {
		return nil
	}
	return unwritable(d.Dir, writeRecord(d, now, was))
}
