package hostinfo

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Distro is the distribution of the host. It returns package names and installation commands.
type Distro struct {
	family string
}

// Families of distributions with the same package manager and package names.
const (
	debian = "debian"
	fedora = "fedora"
	suse   = "suse"
	arch   = "arch"
	alpine = "alpine"
)

// DetectDistro returns the distribution from os-release(5). For an unknown distribution InstallCommand returns a comment.
func DetectDistro(root string) Distro {
	for _, file := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		b, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			continue
		}
		return Distro{family: familyOf(b)}
	}
	return Distro{}
}

func familyOf(osRelease []byte) string {
	var ids []string
	for _, key := range []string{"ID=", "ID_LIKE="} {
		for line := range bytes.Lines(osRelease) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(string(line)), key); ok {
				ids = append(ids, strings.Fields(strings.Trim(v, `"'`))...)
			}
		}
	}
	for _, id := range ids {
		switch id {
		case "debian", "ubuntu":
			return debian
		case "fedora", "rhel", "centos":
			return fedora
		case "suse", "opensuse", "sles":
			return suse
		case "arch":
			return arch
		case "alpine":
			return alpine
		}
	}
	return ""
}

// packages returns the package of a program, which often has the name of the program.
func packages(family, program string) string {
	byFamily := map[string]map[string]string{
		debian: {"newuidmap": "uidmap", "newgidmap": "uidmap", "ip": "iproute2", "nft": "nftables", "pasta": "passt",
			"lxc-user-nic": "lxc", "dnsmasq": "dnsmasq-base", "mount": "mount", "umount": "mount", "nsenter": "util-linux", "modprobe": "kmod", "useradd": "passwd"},
		fedora: {"newuidmap": "shadow-utils", "newgidmap": "shadow-utils", "ip": "iproute", "nft": "nftables",
			"iptables": "iptables-nft", "conntrack": "conntrack-tools", "pasta": "passt", "lxc-user-nic": "lxc",
			"mount": "util-linux", "umount": "util-linux", "nsenter": "util-linux", "modprobe": "kmod", "useradd": "shadow-utils"},
		suse: {"newuidmap": "shadow", "newgidmap": "shadow", "ip": "iproute2", "nft": "nftables", "conntrack": "conntrack-tools",
			"pasta": "passt", "lxc-user-nic": "lxc", "mount": "util-linux", "umount": "util-linux", "nsenter": "util-linux", "modprobe": "kmod", "useradd": "shadow"},
		arch: {"newuidmap": "shadow", "newgidmap": "shadow", "ip": "iproute2", "nft": "nftables", "conntrack": "conntrack-tools",
			"pasta": "passt", "lxc-user-nic": "lxc", "mount": "util-linux", "umount": "util-linux", "nsenter": "util-linux", "modprobe": "kmod", "useradd": "shadow"},
		alpine: {"newuidmap": "shadow-uidmap", "newgidmap": "shadow-uidmap", "ip": "iproute2", "nft": "nftables",
			"conntrack": "conntrack-tools", "pasta": "passt", "lxc-user-nic": "lxc", "nsenter": "util-linux-misc", "modprobe": "kmod", "useradd": "shadow"},
	}
	if p, ok := byFamily[family][program]; ok {
		return p
	}
	return program
}

// Packages returns the packages of programs, sorted and without duplicates.
func (d Distro) Packages(programs []string) []string {
	var out []string
	for _, p := range programs {
		out = append(out, packages(d.family, p))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// InstallCommand returns the command with which root installs programs. On an unknown distribution it is a shell comment.
func (d Distro) InstallCommand(programs []string) string {
	names := strings.Join(d.Packages(programs), " ")
	switch d.family {
	case debian:
		return "apt-get install -y " + names
	case fedora:
		return "dnf install -y " + names
	case suse:
		return "zypper install -y " + names
	case arch:
		return "pacman -S --needed " + names
	case alpine:
		return "apk add " + names
	}
	return "# install these programs with your package manager: " + strings.Join(programs, " ")
}
