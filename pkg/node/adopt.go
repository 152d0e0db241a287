package node

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// adopt returns was, completed with what the data shows about the node. Earlier versions did not record the identity.
func adopt(was datadir.Identity, data layout.Data) datadir.Identity {
	if was.NodeName != "" {
		return was
	}
	cert := readCertificate(data, kubelet.ClientCertificate)
	if cert == nil {
		return was
	}
	if name, ok := strings.CutPrefix(cert.Subject.CommonName, pki.NodeUser("")); ok {
		was.NodeName, was.HostName = name, name // by default the name is that of the host
	}
	return was
}

// foundNetworks returns the networks now, except for those that contradict the files of the last run.
func foundNetworks(data layout.Data, now datadir.Networks) datadir.Networks {
	was := now
	if cert := readCertificate(data, apiserver.Certificate); cert != nil {
		for _, name := range cert.DNSNames {
			if domain, ok := strings.CutPrefix(name, apiserver.ServiceName+"."); ok {
				was.Domain = domain
			}
		}
		if p, err := netip.ParsePrefix(now.ServiceCIDR); err == nil {
			first := net.IP(p.Masked().Addr().Next().AsSlice())
			if !slices.ContainsFunc(cert.IPAddresses, first.Equal) {
				was.ServiceCIDR = "another network"
			}
		}
	}
	if pods := podRange(data); pods.IsValid() {
		if p, err := netip.ParsePrefix(now.PodCIDR); err == nil && !p.Overlaps(pods) {
			was.PodCIDR = "a network that contains " + pods.String()
		}
	}
	return was
}

// readCertificate returns a certificate of the embedded control plane, or nil if it is not readable.
func readCertificate(data layout.Data, name string) *x509.Certificate {
	text := readInside(data, pki.CertFile(name))
	block, _ := pem.Decode(text)
	if block == nil {
		return nil
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil
	}
	return cert
}

// podRange returns the node's range of pod addresses in the CNI configuration of the last run, or the zero Prefix.
func podRange(data layout.Data) netip.Prefix {
	var conf struct {
		Plugins []struct {
			IPAM struct {
				Ranges [][]struct {
					Subnet netip.Prefix `json:"subnet"`
				} `json:"ranges"`
			} `json:"ipam"`
		} `json:"plugins"`
	}
	if json.Unmarshal(readInside(data, layout.InsideCNIConfFile), &conf) != nil {
		return netip.Prefix{}
	}
	for _, p := range conf.Plugins {
		for _, alternatives := range p.IPAM.Ranges {
			for _, r := range alternatives {
				return r.Subnet // that of IPv4 is the first
			}
		}
	}
	return netip.Prefix{}
}

// readInside returns the content of a file that has the path inside, or nil.
func readInside(data layout.Data, path string) []byte {
	file, _ := data.OnHost(path)
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return text
}
