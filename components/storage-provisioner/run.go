package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller/metrics"
)

// annotationProvisioner is the annotation of a volume with its provisioner (Kubernetes).
const annotationProvisioner = "pv.kubernetes.io/provisioned-by"

const (
	// workers is the number of claims, and of volumes, that are handled at the same time.
	workers = 2
	// capacityPeriod is the interval of reports of the free space.
	capacityPeriod = time.Minute
	// firstRetry and lastRetry limit the time after which a failed operation is tried again.
	firstRetry, lastRetry = time.Second, 5 * time.Minute
)

// run serves claims until ctx is done.
func run(ctx context.Context, o options) error {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("API client: %w", err)
	}
	dir, err := openDirectory(o.dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	m := metrics.New(program)
	h, err := serve(ctx, &wg, o.address, m)
	if err != nil {
		return err
	}
	events := newRecorder(ctx, client)
	factory := informers.NewSharedInformerFactory(client, 0)
	s, err := newStorage(client, o, dir, factory)
	if err != nil {
		return fmt.Errorf("watch claims and classes: %w", err)
	}
	c := controller.NewProvisionController(ctx, client, provisionerName, &provisioner{options: o, dir: dir, events: events},
		controller.LeaderElection(false), controller.Threadiness(workers), controller.AddFinalizer(true), controller.MetricsInstance(m),
		controller.RateLimiter(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)),
		controller.FailedProvisionThreshold(0), controller.FailedDeleteThreshold(0),
		controller.CreateProvisionedPVLimiter(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)),
		controller.ClaimsInformer(s.claims), controller.VolumesInformer(s.volumes), controller.ClassesInformer(s.classes))
	c.ControllerWaitGroup(&wg)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	wg.Go(func() { s.run(ctx, h.setReady) })
	c.Run(ctx)
	return ctx.Err()
}

// newRecorder returns a recorder of events.
func newRecorder(ctx context.Context, client kubernetes.Interface) record.EventRecorder {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: client.CoreV1().Events(corev1.NamespaceAll)})
	host, err := os.Hostname()
	if err != nil {
		host = "" // only for people
	}
	return b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: program, Host: host})
}
