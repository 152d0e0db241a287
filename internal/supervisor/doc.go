// Package supervisor runs an ordered set of units: it starts each unit as soon as its needs are met, probes it, restarts
// it with a growing delay when it fails, and stops the set in reverse order. A unit is either a process or a task, which
// is a function of this program. The package does not depend on Kubernetes.
//
// Runs in: child. The node role is the only caller.
//
// # Lifecycle of a unit
//
//	   ┌──────────────────── backoff ◀──────────┬─────────────────┐
//	   │ delay over             ▲               │                 │
//	   ▼                        │ fails         │ dies            │ dies
//	waiting ────────────▶ starting ────────▶ running ────────▶ ready
//	   ▲     needs met             started      │     usable      │
//	   │                                        └────────┬────────┘
//	   │                                                 ▼ stop requested
//	   └──────────────────────────────────────────── stopping ────────▶ stopped
//	                  restart requested                      group stops
//
// Further transitions:
//
//   - running → done and ready → done: a one-shot unit ended successfully.
//   - stopping → backoff: the unit was stopped because it was not ready in time or its liveness probe failed.
//   - starting → failed, running → failed, stopping → failed: the unit failed to start Unit.GiveUpAfter times.
//     stopping → failed also when the group stops and processes remain after SIGKILL.
//   - starting → waiting, backoff → waiting, failed → waiting, done → waiting: Group.Restart. Otherwise failed and done
//     are final, and stay when the group stops.
//   - waiting → stopped, starting → stopped, backoff → stopped: the group stops and nothing of the unit is running.
//
// When a unit dies, the units that need it continue. A need is only checked before a start, so such a unit waits for its
// needs again only when it has to start again. While the group stops, nothing is started.
//
// # Order
//
// When the group stops, a unit is stopped after every unit that needs it, or that it names in StopAfter, has ended. Units
// that do not depend on each other stop in parallel. When Run returns, every process and goroutine of the group has
// ended; processes that the kernel did not end are reported in the returned error.
//
// # Out of scope
//
// The package creates no cgroups and no directories, reads no configuration and reaps no orphans (the child role, not the
// node role, is process 1 of the namespace). It never signals a process ID that could have been reused: a process group is
// signalled only while its leader has not been reaped, because the kernel does not reuse the ID until then.
package supervisor
