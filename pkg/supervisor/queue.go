package supervisor

import "sync"

// queue hands transitions over in order without making the one who causes them wait, or hold a lock, for the receiver.
type queue struct {
	tell func(Transition)
	wake chan struct{}

	mu    sync.Mutex
	items []Transition
	ended bool
}

func newQueue(tell func(Transition)) *queue {
	return &queue{tell: tell, wake: make(chan struct{}, 1)}
}

func (q *queue) add(t Transition) {
	q.mu.Lock()
	q.items = append(q.items, t)
	q.mu.Unlock()
	q.nudge()
}

// end makes serve return when it has handed over what was added before.
func (q *queue) end() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
	q.nudge()
}

func (q *queue) nudge() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) serve() {
	for {
		q.mu.Lock()
		items, ended := q.items, q.ended
		q.items = nil
		q.mu.Unlock()
		for _, t := range items {
			q.tell(t)
		}
		if len(items) > 0 {
			continue
		}
		if ended {
			return
		}
		<-q.wake
	}
}
