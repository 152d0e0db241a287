package portfwd

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// RemoveAll removes all forwards in the ledger, to clean up after a Run that was killed. It fails while Run is active.
func (f *Forwarder) RemoveAll(ctx context.Context) error {
	f.mu.Lock()
	running := f.running
	f.mu.Unlock()
	if running {
		return errors.New("remove forwarded ports: still running")
	}
	return removeOwned(ctx, f.o.Manager, f.ledger, f.o.Concurrency)
}

// removeOwned removes the forwards of the port manager that are in the ledger.
func removeOwned(ctx context.Context, m Manager, l *ledger, concurrency int) error {
	all, err := m.ListPorts(ctx)
	if err != nil {
		return fmt.Errorf("list forwarded ports: %w", err)
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
		slot = make(chan struct{}, concurrency)
	)
	for _, st := range all {
		if !l.has(st.Spec) {
			continue
		}
		slot <- struct{}{}
		wg.Go(func() {
			defer func() { <-slot }()
			err := m.RemovePort(ctx, st.ID)
			if err == nil || isUnknownID(err) {
				err = l.remove(st.Spec)
			}
			if err != nil {
				mu.Lock()
				errs = append(errs, fmt.Errorf("remove forwarded port %s: %w", specKey(st.Spec), err))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
