package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

func newClient(o options) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags(o.kubeAPIURL, o.kubeconfigFile)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("API client: %w", err)
	}
	return client, nil
}

// waitPodCIDR waits until the Node with that name has a pod CIDR, or ctx is done.
// It also waits for the Node to be created, and retries if the API server is not
// reachable. flannel's lease code would fail in these cases.
func waitPodCIDR(ctx context.Context, client kubernetes.Interface, name string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	assigned := make(chan string, 1)
	look := func(obj any) {
		node, ok := obj.(*corev1.Node)
		// Check the name here too, because a fake API server ignores the selector.
		if !ok || node.Name != name || node.Spec.PodCIDR == "" {
			return
		}
		select {
		case assigned <- node.Spec.PodCIDR:
		default:
		}
	}
	nodes := client.CoreV1().Nodes()
	single := metav1.SingleObject(metav1.ObjectMeta{Name: name}).FieldSelector
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = single
				return nodes.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = single
				return nodes.Watch(ctx, o)
			},
		}, client),
		ObjectType: &corev1.Node{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    look,
			UpdateFunc: func(_, now any) { look(now) },
		},
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		controller.RunWithContext(ctx)
	}()
	defer func() { cancel(); <-done }()

	klog.Infof("waiting for node %s to have a pod CIDR", name)
	select {
	case cidr := <-assigned:
		klog.Infof("node %s has pod CIDR %s", name, cidr)
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the pod CIDR of node %s: %w", name, context.Cause(ctx))
	}
}
