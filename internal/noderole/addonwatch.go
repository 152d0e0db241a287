package noderole

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/filewatch"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

const (
	// addonsLook is the interval at which the files are read again, for changes that the watch does not see.
	addonsLook = 30 * time.Second
	// addonsRetry is the delay before a failed addon is applied again. It doubles up to maxAddonsRetry.
	addonsRetry    = 2 * time.Second
	maxAddonsRetry = 2 * time.Minute
	// addonsFirst limits the first application, for which `up` waits.
	addonsFirst = 20 * time.Second
)

// addonCluster is the cluster to which addons are applied.
type addonCluster interface {
	ApplySet(ctx context.Context, s *kubeapi.Set, prune bool) ([]kubeapi.ObjectState, error)
	WatchSet(ctx context.Context, s *kubeapi.Set, fn func(kubeapi.ObjectState)) error
	StoredSets(ctx context.Context) ([]kubeapi.StoredSet, error)
	RemoveSet(ctx context.Context, name string) error
}

// addonWatch applies the addons of the user, and again after changes of their files or objects. It implements conditionWatch.
type addonWatch struct {
	paths []string
	// optional is the path that may be missing.
	optional string
	cluster  func(context.Context) (addonCluster, error)
	log      logrus.FieldLogger

	running map[string]*runningAddon // by name
	changed chan struct{}            // has a value after an object was changed by another client
}

// newAddonWatch returns the watch of the addons in a configuration. serving waits for the API server.
func newAddonWatch(cfg *config.NodeConfig, log logrus.FieldLogger, serving func(context.Context) (*kubeapi.Client, error)) *addonWatch {
	paths := slices.Clone(cfg.Addons)
	if cfg.UserAddons != "" && !slices.Contains(paths, cfg.UserAddons) {
		paths = append(paths, cfg.UserAddons)
	}
	return &addonWatch{
		paths: paths, optional: cfg.UserAddons, log: log,
		cluster: func(ctx context.Context) (addonCluster, error) { return serving(ctx) },
	}
}

// runningAddon is an addon that was applied.
type runningAddon struct {
	digest string
	err    error // of the last application
	stop   func()

	mu      sync.Mutex
	applied map[kubeapi.ObjectID]kubeapi.ObjectState
	current map[kubeapi.ObjectID]kubeapi.ObjectState // reported since the last call of takeForeign
}

// Run implements conditionWatch.
func (w *addonWatch) Run(ctx context.Context, report conditionReporter) error {
	w.running, w.changed = map[string]*runningAddon{}, make(chan struct{}, 1)
	defer func() {
		for _, r := range w.running {
			r.stop()
		}
	}()
	if found, unreadable := readAddons(w.paths, w.optional); len(found)+len(unreadable) > 0 {
		report.set(status.Condition{Pending: true, Reason: "Applying", Message: "the addons are not applied yet"})
	}
	cluster, err := w.cluster(ctx)
	if err != nil {
		return err
	}
	files, err := filewatch.NewTrees(w.paths)
	if err != nil {
		return err
	}
	defer files.Close()
	limit, delay := addonsFirst, addonsRetry
	for {
		files.Refresh()
		round, cancel := context.WithTimeout(ctx, limit)
		failed := w.round(round, ctx, cluster, report)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		limit = maxAddonsRetry
		next := addonsLook
		if failed {
			next, delay = delay, min(2*delay, maxAddonsRetry)
		} else {
			delay = addonsRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-files.Changed():
		case <-w.changed:
		case <-time.After(next):
			continue
		}
		// Simultaneous changes are applied together.
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(restoreDelay):
		}
	}
}

// round reads the files, applies what has changed, deletes what was removed, and reports the result. It returns whether something must
// be tried again soon. The watches of objects end with watches.
func (w *addonWatch) round(ctx, watches context.Context, cluster addonCluster, report conditionReporter) (failed bool) {
	found, unreadable := readAddons(w.paths, w.optional)
	checkDuplicates(found)
	var faults []string
	for _, path := range slices.Sorted(maps.Keys(unreadable)) {
		faults = append(faults, unreadable[path].Error())
	}
	objects := 0
	for i := range found {
		a := &found[i]
		err := a.conflict
		if err == nil {
			err = w.apply(ctx, watches, cluster, a).err
			failed = failed || err != nil
		}
		objects += len(a.set.Objects())
		if err := errors.Join(a.fault, err); err != nil {
			faults = append(faults, a.name+": "+strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	if err := w.removeOthers(ctx, cluster, found, unreadable); err != nil {
		faults, failed = append(faults, err.Error()), true
	}
	switch {
	case len(faults) > 0:
		report.set(status.Condition{
			OK: true, Warning: true, Reason: "NotApplied", Message: strings.Join(faults, "; "),
			Steps: errdefs.Text("# correct the files; the node applies them again when they change"),
		})
	case len(found) == 0:
		report.remove()
	default:
		report.set(status.Condition{OK: true, Reason: "Applied", Message: fmt.Sprintf("addons: %d, objects: %d", len(found), objects)})
	}
	return failed
}

// apply applies an addon if its files or its objects have changed, or if it failed before.
func (w *addonWatch) apply(ctx, watches context.Context, cluster addonCluster, a *addon) *runningAddon {
	old := w.running[a.name]
	var foreign []kubeapi.ObjectID
	if old != nil {
		foreign = old.takeForeign()
		if old.digest == a.digest && old.err == nil && len(foreign) == 0 {
			return old
		}
	}
	// The objects of a file that cannot be read must not be deleted.
	applied, err := cluster.ApplySet(ctx, &a.set, a.fault == nil)
	for _, id := range foreign {
		w.log.Infof("addon %s: restored %s, which was changed or deleted", a.name, id)
	}
	if old != nil && old.digest == a.digest {
		old.err = err
		old.setApplied(applied)
		return old
	}
	if old != nil {
		old.stop()
	}
	w.log.Infof("addon %s: applied %d of %d objects of %s", a.name, len(applied), len(a.set.Objects()), a.path)
	r := &runningAddon{
		digest: a.digest, err: err, applied: map[kubeapi.ObjectID]kubeapi.ObjectState{}, current: map[kubeapi.ObjectID]kubeapi.ObjectState{},
	}
	r.setApplied(applied)
	r.watch(watches, cluster, a.set, w.changed)
	w.running[a.name] = r
	return r
}

// watch follows the objects of the addon.
func (r *runningAddon) watch(ctx context.Context, cluster addonCluster, set kubeapi.Set, changed chan<- struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			_ = cluster.WatchSet(ctx, &set, func(s kubeapi.ObjectState) { r.see(s, changed) })
			select { // a kind may not exist yet
			case <-ctx.Done():
			case <-time.After(watchRetry):
			}
		}
	})
	r.stop = func() {
		cancel()
		watching.Wait()
	}
}

// see records the state of an object.
func (r *runningAddon) see(s kubeapi.ObjectState, changed chan<- struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was, ok := r.applied[s.ObjectID]
	if !ok || s.SameSpec(was) {
		return
	}
	r.current[s.ObjectID] = s
	select {
	case changed <- struct{}{}:
	default:
	}
}

// takeForeign returns the objects that were changed by other clients since the last call.
func (r *runningAddon) takeForeign() []kubeapi.ObjectID {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []kubeapi.ObjectID
	for id, s := range r.current {
		if !s.SameSpec(r.applied[id]) { // otherwise it is the node's own change, which was reported before it was recorded
			ids = append(ids, id)
		}
	}
	clear(r.current)
	return ids
}

func (r *runningAddon) setApplied(all []kubeapi.ObjectState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range all {
		r.applied[s.ObjectID] = s
	}
}

// removeOthers deletes the objects of addons whose files are gone. Those of a directory that cannot be read are kept.
func (w *addonWatch) removeOthers(ctx context.Context, cluster addonCluster, found []addon, unreadable map[string]error) error {
	stored, err := cluster.StoredSets(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range stored {
		present := slices.ContainsFunc(found, func(a addon) bool { return a.name == s.Name })
		hidden := slices.ContainsFunc(slices.Collect(maps.Keys(unreadable)), func(path string) bool {
			return s.Source == path || strings.HasPrefix(s.Source, path+"/")
		})
		if present || hidden {
			continue
		}
		if r := w.running[s.Name]; r != nil {
			r.stop()
			delete(w.running, s.Name)
		}
		w.log.Infof("addon %s: deleting its objects, because %s is gone", s.Name, s.Source)
		errs = append(errs, cluster.RemoveSet(ctx, s.Name))
	}
	return errors.Join(errs...)
}
