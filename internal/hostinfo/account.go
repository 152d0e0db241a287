// Package hostinfo reads what is known of accounts, subordinate ids and the distribution, and holds the texts and
// numbers that both pkg/preflight (which checks them) and pkg/hostsetup (which sets them) need.
//
// Every function takes the root directory below which the host's files are looked for, "" for the real one. It writes
// nothing. Runs in: parent.
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

// queryTimeout bounds a question to the name service, which may have to ask a server.
const queryTimeout = 5 * time.Second

// Account is one row of passwd(5).
type Account struct {
	Name        string
	UID, GID    int
	Home, Shell string
}

// Lookup finds the account that key, a name or a uid in digits, stands for: in /etc/passwd, then through getent(1) if
// that program is given (its path), for accounts of directory services. ok is false for an account unknown to both.
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
		return Account{}, false, nil // exit 2: not known
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

// Groups returns the supplementary groups of an account by /etc/group, its own group first, as initgroups(3) does.
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
