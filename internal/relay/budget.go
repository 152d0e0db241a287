package relay

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Budget divides a number of descriptors among shares. One share may use as many as all shares together leave free: one busy
// share gets half of the budget, two get a third each, and n get one part of n+1 each. A share that uses none always finds
// some free, even if the others are at their limits.
type Budget struct {
	mu          sync.Mutex
	total, used int
}

// Share is a part of a Budget, for example that of one port.
type Share struct {
	budget *Budget
	used   int
}

// NewBudget returns a budget of total descriptors.
func NewBudget(total int) *Budget { return &Budget{total: total} }

// Share returns a new, empty share.
func (b *Budget) Share() *Share { return &Share{budget: b} }

// Take takes n descriptors and reports whether the share's limit allowed it. Factor 1 is the rule of Budget; a greater
// factor makes the limit of this share that much smaller.
func (s *Share) Take(n, factor int) bool {
	b := s.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if (s.used+n)*factor > b.total-b.used {
		return false
	}
	s.used += n
	b.used += n
	return true
}

// Release returns n descriptors to the budget.
func (s *Share) Release(n int) {
	b := s.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	s.used -= n
	b.used -= n
}

// Used returns the number of descriptors that the share has taken.
func (s *Share) Used() int {
	s.budget.mu.Lock()
	defer s.budget.mu.Unlock()
	return s.used
}

// Limit returns the number of descriptors that this process may open.
func Limit() (int, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	const most = 1 << 20 // fs.nr_open by default; also "unlimited"
	return int(min(r.Cur, most)), nil
}
