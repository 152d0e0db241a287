// Package specfilter takes out of an OCI runtime specification the limits that cannot be set, because the cgroup
// controller behind them was not delegated to the node. It is the logic of rootlessnode-runc, the shim in front of runc.
//
// runc 1.5 writes every limit that a specification names, and a container whose cpu.weight file does not exist is not
// started (opencontainers/cgroups, fs2: setCPU, setMemory, setPids, setCpuset, setIo, setHugeTlb, RdmaSet and setUnified
// all return the error of the write). Its own --rootless option forgives device rules and errors while the cgroup is
// made, never these writes.
//
// It refuses to guess: a limit whose controller is present stays as it is, and so do device rules, the cgroup's path,
// oomScoreAdj and every field it does not know. Runs in: child, as a process that containerd's shim starts.
package specfilter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// known are the controllers that an OCI specification can address on cgroup v2.
const known = "cpu cpuset io memory hugetlb pids rdma"

// Missing returns the controllers that a specification can address and that are not in available: what Config.Drop has
// to hold. Pure.
func Missing(available []string) []string {
	var out []string
	for _, c := range strings.Fields(known) {
		if !slices.Contains(available, c) {
			out = append(out, c)
		}
	}
	return out
}

// Spec returns config, the text of a bundle's config.json, without the entries of linux.resources whose controller is in
// drop, and the names of what was taken out ("cpu.shares", "memory", …). Nothing taken out gives back the very bytes.
// Keys keep their order, and unknown ones their place. Pure.
func Spec(config []byte, drop []string) (out []byte, dropped []string, err error) {
	out, err = edit(config, func(top member) (member, bool, error) {
		if !top.is("linux") || !top.isObject() {
			return top, true, nil
		}
		linux, err := edit(top.value, func(m member) (member, bool, error) {
			if !m.is("resources") || !m.isObject() {
				return m, true, nil
			}
			res, names, err := Resources(m.value, drop)
			dropped = append(dropped, names...)
			m.value = res
			return m, true, err
		})
		top.value = linux
		return top, true, err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("parse OCI specification: %w", err)
	}
	if len(dropped) == 0 {
		return config, nil, nil
	}
	return out, dropped, nil
}

// Resources is Spec for a bare linux.resources object, the form that `runc update --resources` reads. Pure.
func Resources(resources []byte, drop []string) (out []byte, dropped []string, err error) {
	without := func(controller string) bool { return slices.Contains(drop, controller) }
	out, err = edit(resources, func(m member) (member, bool, error) {
		if c := wholeController(m); c != "" {
			if !without(c) {
				return m, true, nil
			}
			dropped = append(dropped, strings.ToLower(m.key))
			return m, false, nil
		}
		var of func(key string) string
		switch {
		case m.is("cpu"):
			of = cpuController
		case m.is("unified"):
			of = unifiedController
		}
		if of == nil || !m.isObject() {
			return m, true, nil
		}
		names, err := m.filter(func(key string) bool { return without(of(key)) })
		dropped = append(dropped, names...)
		return m, len(names) == 0 || !m.isEmpty(), err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("parse OCI resources: %w", err)
	}
	if len(dropped) == 0 {
		return resources, nil, nil
	}
	return out, dropped, nil
}

// wholeController names the controller that a member of linux.resources belongs to as a whole. Device rules need none
// (they are eBPF programs), network is a matter of v1 and ignored by runc on v2.
func wholeController(m member) string {
	switch {
	case m.is("memory"):
		return "memory"
	case m.is("pids"):
		return "pids"
	case m.is("blockIO"):
		return "io"
	case m.is("hugepageLimits"):
		return "hugetlb"
	case m.is("rdma"):
		return "rdma"
	}
	return ""
}

// cpuController: linux.resources.cpu holds two controllers.
func cpuController(key string) string {
	for _, k := range []string{"cpus", "mems"} {
		if strings.EqualFold(key, k) {
			return "cpuset"
		}
	}
	for _, k := range []string{"shares", "quota", "burst", "period", "realtimeRuntime", "realtimePeriod", "idle"} {
		if strings.EqualFold(key, k) {
			return "cpu"
		}
	}
	return ""
}

// unifiedController: a key of linux.resources.unified is a file name, CONTROLLER.PARAMETER; "cgroup.…" files need none
// and no such name is ever in a drop list.
func unifiedController(key string) string {
	c, _, ok := strings.Cut(key, ".")
	if !ok || c == "cgroup" {
		return ""
	}
	return c
}

// member is one key of a JSON object, its value as written.
type member struct {
	key   string
	value json.RawMessage
}

// is compares as encoding/json does in runc: without regard to case.
func (m member) is(key string) bool { return strings.EqualFold(m.key, key) }

func (m member) isObject() bool {
	return bytes.HasPrefix(bytes.TrimLeft(m.value, " \t\r\n"), []byte("{"))
}

func (m member) isEmpty() bool {
	inner := bytes.TrimSpace(m.value)
	return len(inner) >= 2 && len(bytes.TrimSpace(inner[1:len(inner)-1])) == 0
}

// filter takes out of the object m.value the keys that unwanted names and returns them as "m.key".
func (m *member) filter(unwanted func(key string) bool) (names []string, err error) {
	v, err := edit(m.value, func(n member) (member, bool, error) {
		if !unwanted(n.key) {
			return n, true, nil
		}
		names = append(names, strings.ToLower(m.key)+"."+n.key)
		return n, false, nil
	})
	if err == nil && len(names) > 0 {
		m.value = v
	}
	return names, err
}

// edit passes each member of a JSON object through f, which may change it or (false) take it out. Order, repeated keys
// and the text of values stay.
func edit(object []byte, f func(member) (member, bool, error)) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(object))
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if tok != json.Delim('{') {
		return nil, fmt.Errorf("an object is wanted, not %v", tok)
	}
	out := append(make([]byte, 0, len(object)), '{')
	for dec.More() {
		var m member
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		m.key = key.(string) // the decoder takes nothing else for a key
		if err := dec.Decode(&m.value); err != nil {
			return nil, err
		}
		m, keep, err := f(m)
		if err != nil {
			return nil, err
		}
		if keep {
			out = m.append(out)
		}
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	if rest := object[dec.InputOffset():]; len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("text after the object, at byte %d", dec.InputOffset())
	}
	return append(out, '}'), nil
}

func (m member) append(out []byte) []byte {
	if len(out) > 1 {
		out = append(out, ',')
	}
	var key bytes.Buffer
	enc := json.NewEncoder(&key)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(m.key) // a string always encodes
	out = append(out, bytes.TrimSpace(key.Bytes())...)
	out = append(out, ':')
	return append(out, m.value...)
}
