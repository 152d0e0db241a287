// Package supervisor keeps an ordered set of units alive: it starts each one in the instant its needs are met, probes
// it, restarts it with a growing delay when it dies, and stops the set in the reverse order. A unit is either a process
// or a task, which is a function of this program. The package knows nothing of Kubernetes.
//
// Runs in: child (the node role). Nothing here depends on it, but the node role is the only caller.
//
// # Life of a unit
//
//	   ┌──────────────────── backoff ◀──────────┬─────────────────┐
//	   │ delay over             ▲               │                 │
//	   ▼                        │ fails         │ dies            │ dies
//	waiting ────────────▶ starting ────────▶ running ────────▶ ready
//	   ▲     needs met             started      │     usable      │
//	   │                                        └────────┬────────┘
//	   │                                                 ▼ to be ended
//	   └──────────────────────────────────────────── stopping ────────▶ stopped
//	                    restart asked                        group stops
//
// Besides these:
//
//   - running → done and ready → done: a one-shot unit ended well.
//   - stopping → backoff: what was ended was not ready in time, or not alive.
//   - starting → failed, running → failed, stopping → failed: one failed start too many (Unit.GiveUpAfter); and stopping →
//     failed, too, when the group stops and even SIGKILL left something behind.
//   - starting → waiting, backoff → waiting, failed → waiting, done → waiting: Group.Restart. Otherwise failed and done
//     are ends, and stay when the group stops.
//   - waiting → stopped, starting → stopped, backoff → stopped: the group stops and nothing of the unit runs.
//
// A unit that dies takes nobody along: the units that need it go on. They were started on the promise that it was there
// once; only when one of them has to start again does it wait for its needs again. While the group stops nothing is
// started any more, so a unit that dies then stays down.
//
// # Order
//
// A unit is stopped when the group stops and every unit that needs it, or that it names in StopAfter, has ended, so units that do not depend on one
// another stop side by side. The return of Run means that every process and goroutine of the group is gone, and
// the returned error says so where the kernel did not let one go.
//
// # What it refuses to do
//
// It creates no cgroups and no directories, reads no configuration, reaps no orphans (the node role is not process 1 of
// its namespace; the child role is), and never signals by a number that could have been given to a stranger: a
// process group is signalled only while its leader has not been reaped, which keeps the number taken.
package supervisor
