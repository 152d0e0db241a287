package datadir

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
)

// Versions are the versions of the programs that used the data.
type Versions struct {
	Rootlessnode string `json:"rootlessnode"`
	// Kubernetes and Etcd are those of the components, in the form v1.37.2.
	Kubernetes string `json:"kubernetes"`
	Etcd       string `json:"etcd"`
}

// Minor returns the major and the minor version of v, such as 1.37, or "" if v is not a version.
func Minor(v string) string {
	parsed, err := version.ParseGeneric(v)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%d.%d", parsed.Major(), parsed.Minor())
}

// Next returns the minor version after that of v, or "" if v is not a version.
func Next(v string) string {
	parsed, err := version.ParseGeneric(v)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%d.%d", parsed.Major(), parsed.Minor()+1)
}

// Steps returns by how many minor versions now is newer than was, or a negative number if it is older. ok is false if one of them is
// unknown. Another major version counts as older.
func Steps(was, now string) (steps int, ok bool) {
	old, errOld := version.ParseGeneric(was)
	current, errNow := version.ParseGeneric(now)
	switch {
	case errOld != nil || errNow != nil:
		return 0, false
	case current.Major() != old.Major():
		return -1, true
	}
	return int(current.Minor()) - int(old.Minor()), true
}

// upgrades reports whether programs with the versions now change data of the versions was, so that the former programs may not read it any
// more. Patch releases do not.
func upgrades(was, now Versions) bool {
	for _, v := range [][2]string{{was.Kubernetes, now.Kubernetes}, {was.Etcd, now.Etcd}} {
		if steps, ok := Steps(v[0], v[1]); ok && steps != 0 {
			return true
		}
	}
	return false
}
