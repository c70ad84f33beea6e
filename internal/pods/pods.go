package pods

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/lockfs/lockfs/internal/procid"
)

// Config says which pods to know.
type Config struct {
	// Client is the API server's. Required.
	Client corev1client.CoreV1Interface
	// Node is this machine's name in the cluster. Required.
	Node string
	// Logger; nil means slog.Default().
	Logger *slog.Logger
}

// Pods knows the pods of this node.
type Pods struct {
	procs       procid.Proc // the machine's
	node        string      // its name in the cluster
	informer    cache.SharedIndexInformer
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
	cancel      context.CancelFunc
	wg          sync.WaitGroup
}

// Start starts to learn the pods' names. It waits for none.
func Start(cfg Config) (*Pods, error) {
	if cfg.Client == nil || cfg.Node == "" {
		return nil, errors.New("pods: Config.Client and Config.Node are required")
	}
	log := cfg.Logger
	if log == nil {
		log = slog.Default()
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logr.FromSlogHandler(log.Handler())))
	p := &Pods{
		node:     cfg.Node,
		informer: cache.NewSharedIndexInformer(onNode(cfg.Client, cfg.Node), &corev1.Pod{}, 0, cache.Indexers{byUID: uids}),
		cancel:   cancel,
	}
	if err := errors.Join(p.informer.SetTransform(strip), p.informer.SetWatchErrorHandlerWithContext(
		func(_ context.Context, _ *cache.Reflector, err error) {
			log.Warn("the pods of this node are not watched; trying again", slog.Any("error", err))
		})); err != nil {
		cancel()
		return nil, err
	}
	p.broadcaster = record.NewBroadcaster(record.WithContext(ctx))
	p.broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: cfg.Client.Events("")})
	// Events have references only, so no type has to be known.
	p.recorder = p.broadcaster.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: "lockfs", Host: cfg.Node})
	p.wg.Go(func() { p.informer.RunWithContext(ctx) })
	return p, nil
}

// Close stops it. Events that are not written yet are lost.
func (p *Pods) Close() {
	p.cancel()
	p.broadcaster.Shutdown()
	p.wg.Wait()
}

func onNode(client corev1client.CoreV1Interface, node string) cache.ListerWatcher {
	selector := fields.OneTermEqualSelector("spec.nodeName", node).String()
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			opts.FieldSelector = selector
			return client.Pods("").List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.FieldSelector = selector
			return client.Pods("").Watch(ctx, opts)
		},
	}, client)
}
