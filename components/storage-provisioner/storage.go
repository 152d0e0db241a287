package main

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// storage does what the library does not do: it keeps the storage class, reports the
// free space, and expands volumes.
type storage struct {
	claims, volumes, classes cache.SharedIndexInformer

	claimLister corelisters.PersistentVolumeClaimLister
	class       *classKeeper
	capacity    *capacityReporter
	expander    *expander
	// changed has a value after a change of a class.
	changed chan struct{}
	// resized has the claims to look at.
	resized workqueue.TypedRateLimitingInterface[cache.ObjectName]
}

func newStorage(client kubernetes.Interface, o options, dir *directory, factory informers.SharedInformerFactory) (*storage, error) {
	claims, volumes, classes := factory.Core().V1().PersistentVolumeClaims(), factory.Core().V1().PersistentVolumes(), factory.Storage().V1().StorageClasses()
	all := allClasses(classes.Lister())
	s := &storage{
		claims: claims.Informer(), volumes: volumes.Informer(), classes: classes.Informer(),
		claimLister: claims.Lister(),
		class:       &classKeeper{client: client, options: o, classes: all},
		capacity:    &capacityReporter{client: client, options: o, classes: all, free: dir.free, reported: map[string]int64{}},
		expander:    &expander{client: client, volumes: volumes.Lister()},
		changed:     make(chan struct{}, 1),
		resized:     workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](firstRetry, lastRetry)),
	}
	_, err := s.classes.AddEventHandler(anyChange(func(any) { s.notify() }))
	if err != nil {
		return nil, err
	}
	_, err = s.claims.AddEventHandler(anyChange(func(o any) {
		if claim, ok := o.(*corev1.PersistentVolumeClaim); ok {
			s.resized.Add(cache.MetaObjectToName(claim))
		}
	}))
	return s, err
}

// anyChange returns a handler that calls f after every change of an object.
func anyChange(f func(any)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{AddFunc: f, UpdateFunc: func(_, o any) { f(o) }, DeleteFunc: f}
}

func allClasses(lister storagelisters.StorageClassLister) func() []*storagev1.StorageClass {
	return func() []*storagev1.StorageClass {
		all, err := lister.List(labels.Everything())
		if err != nil {
			panic(err) // cannot happen: the lister reads memory
		}
		return all
	}
}

func (s *storage) notify() {
	select {
	case s.changed <- struct{}{}:
	default: // not yet taken
	}
}

// run works until ctx is done. It calls ready when the storage class exists.
func (s *storage) run(ctx context.Context, ready func()) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.resize(ctx) })
	wg.Go(func() {
		<-ctx.Done()
		s.resized.ShutDown()
	})
	delay := firstRetry
	for {
		next := capacityPeriod
		if err := s.class.reconcile(ctx); err != nil {
			klog.Errorf("%v; next attempt in %s", err, delay)
			next, delay = delay, min(2*delay, capacityPeriod)
		} else {
			ready()
			delay = firstRetry
			if err := s.capacity.report(ctx); err != nil {
				klog.Errorf("%v", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		case <-time.After(next):
		}
	}
}

// resize expands volumes until the queue is shut down.
func (s *storage) resize(ctx context.Context) {
	for {
		name, shutdown := s.resized.Get()
		if shutdown {
			return
		}
		claim, err := s.claimLister.PersistentVolumeClaims(name.Namespace).Get(name.Name)
		if err == nil { // otherwise it was deleted
			err = s.expander.expand(ctx, claim)
		}
		if err != nil && !apierrors.IsNotFound(err) {
			klog.Errorf("%v", err)
			s.resized.AddRateLimited(name)
		} else {
			s.resized.Forget(name)
		}
		s.resized.Done(name)
	}
}
