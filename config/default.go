package config

// Default returns the default configuration, without the fields that depend on the host (NodeName, DataDir, ComponentsDir)
// or on other fields (Cluster.DNSAddress, Ports.BindAddresses). Complete sets most of them.
func Default() *NodeConfig {
	c := &NodeConfig{Name: DefaultName}
	for _, l := range c.leaves() {
		if text, ok := l.tag.Lookup("default"); ok {
			if err := setLeaf(l.value, text); err != nil {
				panic("config: default of " + l.path + ": " + err.Error()) // a fault in this package, which its tests find
			}
		}
	}
	return c
}
