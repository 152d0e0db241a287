package specfilter

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Move moves the cgroups of containers from below From to below To. Both are absolute cgroup paths. The zero value moves nothing.
//
// A kubelet without cgroups per QoS class does not set a parent cgroup. Then containerd uses its default, the name of its namespace at the
// root of the tree.
type Move struct {
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

func (m Move) check() error {
	if m == (Move{}) {
		return nil
	}
	for _, p := range []string{m.From, m.To} {
		if !strings.HasPrefix(p, "/") || strings.HasSuffix(p, "/") {
			return fmt.Errorf("%q is not an absolute cgroup path", p)
		}
	}
	return nil
}

// Cgroup returns config, the text of a bundle's config.json, with linux.cgroupsPath moved. moved reports whether it was changed. Pure.
func Cgroup(config []byte, move Move) (out []byte, moved bool, err error) {
	if move == (Move{}) {
		return config, false, nil
	}
	out, err = edit(config, func(top member) (member, bool, error) {
		if !top.is("linux") || !top.isObject() {
			return top, true, nil
		}
		linux, err := edit(top.value, func(m member) (member, bool, error) {
			var path string
			if !m.is("cgroupsPath") || json.Unmarshal(m.value, &path) != nil {
				return m, true, nil
			}
			rest, below := strings.CutPrefix(path, move.From+"/")
			if !below {
				return m, true, nil
			}
			moved = true
			m.value, _ = json.Marshal(move.To + "/" + rest) // encoding a string cannot fail
			return m, true, nil
		})
		top.value = linux
		return top, true, err
	})
	if err != nil {
		return nil, false, fmt.Errorf("parse OCI specification: %w", err)
	}
	if !moved {
		return config, false, nil
	}
	return out, true, nil
}
