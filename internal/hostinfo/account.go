// Package hostinfo reads information about the host: accounts, subordinate ids, the distribution and the machine. It also contains
// the texts and values that both internal/preflight (which checks the host) and internal/hostsetup (which sets it up) need.
//
// Functions that read files take a root directory that is prepended to their paths, "" for the real host. The package writes no
// files. Runs in: parent.
package hostinfo

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// queryTimeout limits a query to the name service, which may have to contact a server.
const queryTimeout = 5 * time.Second

// Account is an entry of passwd(5).
type Account struct {
	Name        string
	UID, GID    int
	Home, Shell string
}

// Lookup returns the account with the name or decimal uid key, from /etc/passwd or else from getent(1), which knows accounts of
// directory services. getent is the path of that program, or "" to skip it. ok is false if the account is not found.
func Lookup(ctx context.Context, root, key, getent string) (a Account, ok bool, err error) {
	b, err := os.ReadFile(filepath.Join(root, "/etc/passwd"))
	if err != nil && !os.IsNotExist(err) {
		return Account{}, false, fmt.Errorf("look up account %s: %w", key, err)
	}
	if a, ok = findAccount(b, key); ok || getent == "" {
		return a, ok, nil
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, getent, "passwd", key).Output()
	if err != nil {
		return Account{}, false, nil // exit code 2: not found
	}
	a, ok = findAccount(out, key)
	return a, ok, nil
}

func findAccount(passwd []byte, key string) (Account, bool) {
	for line := range bytes.Lines(passwd) {
		if a, ok := parseAccount(strings.TrimRight(string(line), "\n")); ok && (a.Name == key || strconv.Itoa(a.UID) == key) {
			return a, true
		}
	}
	return Account{}, false
}

func parseAccount(line string) (Account, bool) {
	f := strings.Split(line, ":")
	if len(f) != 7 || f[0] == "" {
		return Account{}, false
	}
	uid, err := strconv.ParseUint(f[2], 10, 31)
	if err != nil {
		return Account{}, false
	}
	gid, err := strconv.ParseUint(f[3], 10, 31)
	if err != nil {
		return Account{}, false
	}
	return Account{Name: f[0], UID: int(uid), GID: int(gid), Home: f[5], Shell: f[6]}, true
}

// Groups returns the groups of an account like initgroups(3): its primary group, then its groups of /etc/group.
func Groups(root string, a Account) ([]int, error) {
	b, err := os.ReadFile(filepath.Join(root, "/etc/group"))
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("look up groups of %s: %w", a.Name, err)
	}
	groups := []int{a.GID}
	for line := range bytes.Lines(b) {
		f := strings.Split(strings.TrimRight(string(line), "\n"), ":")
		if len(f) != 4 {
			continue
		}
		gid, err := strconv.ParseUint(f[2], 10, 31)
		if err != nil || int(gid) == a.GID {
			continue
		}
		for member := range strings.SplitSeq(f[3], ",") {
			if member == a.Name {
				groups = append(groups, int(gid))
				break
			}
		}
	}
	return groups, nil
}
