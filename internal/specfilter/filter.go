// Package specfilter removes limits from an OCI runtime specification that cannot be set because their cgroup controller is not delegated to
// the node. It is the implementation of rootlessnode-runc, a shim for runc.
//
// runc 1.5 writes all limits of a specification and does not start a container if a file such as cpu.weight does not exist
// (opencontainers/cgroups, fs2: setCPU, setMemory, setPids, setCpuset, setIo, setHugeTlb, RdmaSet and setUnified return the error of the
// write). With its --rootless option, runc ignores errors of device rules and of the creation of the cgroup, but not of these writes.
//
// The package does not change limits whose controller is available, device rules, the cgroup's path (except for Move), oomScoreAdj and
// unknown fields.
//
// Runs in: child, as a process that containerd's shim starts.
package specfilter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// known has the controllers that an OCI specification can use on cgroup v2.
const known = "cpu cpuset io memory hugetlb pids rdma"

// Missing returns the controllers that a specification can use and that are not in available. It is the value for Config.Drop. Pure.
func Missing(available []string) []string {
	var out []string
	for _, c := range strings.Fields(known) {
		if !slices.Contains(available, c) {
			out = append(out, c)
		}
	}
	return out
}

// Spec returns config, the text of a bundle's config.json, without the entries of linux.resources whose controller is in drop. dropped has the
// names of the removed entries ("cpu.shares", "memory", …). If no entry is removed, Spec returns config unchanged. The order of keys does not
// change. Pure.
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

// Resources is like Spec for a linux.resources object only, which `runc update --resources` reads. Pure.
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

// wholeController returns the controller to which all settings in a member of linux.resources belong, or "". Device rules need no controller
// because they are eBPF programs. runc ignores network on cgroup v2.
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

// cpuController returns the controller for a key of linux.resources.cpu, which is cpu or cpuset, or "".
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

// unifiedController returns the controller for a key of linux.resources.unified, which is a file name CONTROLLER.PARAMETER. It returns "" for
// "cgroup.…" files, which need no controller.
func unifiedController(key string) string {
	c, _, ok := strings.Cut(key, ".")
	if !ok || c == "cgroup" {
		return ""
	}
	return c
}

// member is a key of a JSON object with the unparsed text of its value.
type member struct {
	key   string
	value json.RawMessage
}

// is reports whether the key equals key, ignoring case, as encoding/json in runc does.
func (m member) is(key string) bool { return strings.EqualFold(m.key, key) }

func (m member) isObject() bool {
	return bytes.HasPrefix(bytes.TrimLeft(m.value, " \t\r\n"), []byte("{"))
}

func (m member) isEmpty() bool {
	inner := bytes.TrimSpace(m.value)
	return len(inner) >= 2 && len(bytes.TrimSpace(inner[1:len(inner)-1])) == 0
}

// filter removes the keys for which unwanted returns true from the object m.value. It returns their names as "m.key".
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

// edit calls f for each member of a JSON object. f returns the member, possibly changed, or false to remove it. The order, duplicate keys and
// the text of values are preserved.
func edit(object []byte, f func(member) (member, bool, error)) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(object))
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if tok != json.Delim('{') {
		return nil, fmt.Errorf("must be an object, got %v", tok)
	}
	out := append(make([]byte, 0, len(object)), '{')
	for dec.More() {
		var m member
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		m.key = key.(string) // the decoder accepts only strings as keys
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
		return nil, fmt.Errorf("unexpected text after the object at byte %d", dec.InputOffset())
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
	_ = enc.Encode(m.key) // encoding a string cannot fail
	out = append(out, bytes.TrimSpace(key.Bytes())...)
	out = append(out, ':')
	return append(out, m.value...)
}
