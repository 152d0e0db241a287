package hostinfo

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Modules returns the kernel modules that a node uses and that a user namespace cannot load. A kernel may have some of them built
// in, or not have them, such as the ip_tables family on a host with nftables only.
func Modules() []string {
	return []string{
		"fuse", "tun", "overlay", "bridge", "br_netfilter", "veth", "vxlan",
		"nf_tables", "nft_compat", "nft_chain_nat", "ip_tables", "iptable_nat", "iptable_filter", "ip6_tables", "ip6table_nat", "ip6table_filter",
		"xt_MASQUERADE", "xt_addrtype", "xt_comment", "xt_conntrack", "xt_mark", "xt_multiport", "xt_nat", "xt_tcpudp",
	}
}

// LoadableModules returns those of Modules for which the running kernel has a file (modules.dep(5)). root is prepended to the paths.
func LoadableModules(root string) []string {
	release, err := os.ReadFile(filepath.Join(root, "/proc/sys/kernel/osrelease"))
	if err != nil {
		return nil
	}
	dep, err := os.ReadFile(filepath.Join(root, "/lib/modules", strings.TrimSpace(string(release)), "modules.dep"))
	if err != nil {
		return nil
	}
	have := map[string]bool{}
	for line := range strings.Lines(string(dep)) {
		file, _, _ := strings.Cut(line, ":")
		name, _, _ := strings.Cut(filepath.Base(file), ".")
		have[strings.ReplaceAll(name, "-", "_")] = true
	}
	return slices.DeleteFunc(Modules(), func(m string) bool { return !have[m] })
}

// UnloadedModules returns those of names that are not loaded.
func UnloadedModules(root string, names []string) []string {
	b, _ := os.ReadFile(filepath.Join(root, "/proc/modules"))
	loaded := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		name, _, _ := strings.Cut(line, " ")
		loaded[name] = true
	}
	return slices.DeleteFunc(slices.Clone(names), func(m string) bool { return loaded[m] })
}
