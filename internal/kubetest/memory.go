package kubetest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Memory is the part of an API server that keeps Leases, in memory: for tests in which time is not
// real, and which need thousands of them. It has no permissions and no other objects.
type Memory struct {
	mu     sync.Mutex
	rev    int64
	leases map[string]*coordinationv1.Lease // by namespace/name
	past   []change
	more   chan struct{} // closed at the next change
	down   bool
}

type change struct {
	kind     string // ADDED, MODIFIED or DELETED
	rev      int64
	key      string
	old, now *coordinationv1.Lease // nil before ADDED; of DELETED, now has the revision of its end
}

// NewMemory returns an API server without Leases.
func NewMemory() *Memory {
	return &Memory{rev: 1, leases: make(map[string]*coordinationv1.Lease), more: make(chan struct{})}
}

// Config is how a client reaches it by way, which gets the server and returns what stands before it.
func (m *Memory) Config(way func(http.RoundTripper) http.RoundTripper) *rest.Config {
	return &rest.Config{Host: "http://memory", Transport: way(m), QPS: -1}
}

// SetDown has it answer nobody, or somebody again.
func (m *Memory) SetDown(down bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = down
	m.wake()
}

func (m *Memory) wake() {
	close(m.more)
	m.more = make(chan struct{})
}

var resource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// RoundTrip answers a request.
func (m *Memory) RoundTrip(r *http.Request) (*http.Response, error) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // apis, group, version, namespaces, <namespace>, leases, <name>
	if len(parts) < 6 || parts[5] != "leases" {
		return reply(r, apierrors.NewNotFound(resource, r.URL.Path)), nil
	}
	space, name := parts[4], ""
	if len(parts) > 6 {
		name = parts[6]
	}
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return nil, fmt.Errorf("the API server is down")
	}
	query := r.URL.Query()
	selector, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		return reply(r, apierrors.NewBadRequest(err.Error())), nil
	}
	switch {
	case r.Method == http.MethodGet && name != "":
		if l := m.leases[path.Join(space, name)]; l != nil {
			return reply(r, l), nil
		}
		return reply(r, apierrors.NewNotFound(resource, name)), nil
	case r.Method == http.MethodGet && query.Get("watch") != "":
		return m.watch(r, space, selector)
	case r.Method == http.MethodGet:
		return reply(r, m.list(space, selector)), nil
	case r.Method == http.MethodDelete:
		var opts metav1.DeleteOptions
		if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, &opts); len(body) > 0 && err != nil {
			return reply(r, apierrors.NewBadRequest(err.Error())), nil
		}
		return reply(r, m.delete(path.Join(space, name), opts.Preconditions)), nil
	}
	var lease coordinationv1.Lease
	if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, &lease); err != nil {
		return reply(r, apierrors.NewBadRequest(err.Error())), nil
	}
	lease.Namespace = space
	return reply(r, m.put(path.Join(space, lease.Name), &lease, r.Method == http.MethodPost)), nil
}

func (m *Memory) put(key string, lease *coordinationv1.Lease, create bool) any {
	old := m.leases[key]
	switch {
	case create && old != nil:
		return apierrors.NewAlreadyExists(resource, lease.Name)
	case create:
		lease.UID, lease.CreationTimestamp = types.UID(fmt.Sprint("uid-", m.rev)), metav1.Now()
	case old == nil:
		return apierrors.NewNotFound(resource, lease.Name)
	case lease.ResourceVersion != old.ResourceVersion || lease.UID != "" && lease.UID != old.UID:
		return apierrors.NewConflict(resource, lease.Name, fmt.Errorf("it is of version %s", old.ResourceVersion))
	default:
		lease.UID, lease.CreationTimestamp = old.UID, old.CreationTimestamp
		if reflect.DeepEqual(lease, old) {
			return old
		}
	}
	kind := "MODIFIED"
	if create {
		kind = "ADDED"
	}
	lease.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
	m.rev++
	lease.ResourceVersion = strconv.FormatInt(m.rev, 10)
	m.leases[key] = lease
	m.note(change{kind, m.rev, key, old, lease})
	return lease
}

func (m *Memory) delete(key string, only *metav1.Preconditions) any {
	old := m.leases[key]
	name := path.Base(key)
	if old == nil {
		return apierrors.NewNotFound(resource, name)
	}
	if only != nil && (only.UID != nil && *only.UID != old.UID || only.ResourceVersion != nil && *only.ResourceVersion != old.ResourceVersion) {
		return apierrors.NewConflict(resource, name, fmt.Errorf("it is of version %s", old.ResourceVersion))
	}
	m.rev++
	delete(m.leases, key)
	last := old.DeepCopy()
	last.ResourceVersion = strconv.FormatInt(m.rev, 10)
	m.note(change{"DELETED", m.rev, key, old, last})
	return &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}
}

func (m *Memory) note(c change) {
	m.past = append(m.past, c)
	m.wake()
}

func (m *Memory) list(space string, of labels.Selector) *coordinationv1.LeaseList {
	list := &coordinationv1.LeaseList{
		TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "LeaseList"},
		ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(m.rev, 10)},
	}
	for key, l := range m.leases {
		if strings.HasPrefix(key, space+"/") && of.Matches(labels.Set(l.Labels)) {
			list.Items = append(list.Items, *l)
		}
	}
	return list
}

// watch streams what comes after a revision, and a bookmark now and then.
func (m *Memory) watch(r *http.Request, space string, of labels.Selector) (*http.Response, error) {
	query := r.URL.Query()
	from, err := strconv.ParseInt(query.Get("resourceVersion"), 10, 64)
	if err != nil {
		return reply(r, apierrors.NewBadRequest(err.Error())), nil
	}
	seconds, _ := strconv.Atoi(query.Get("timeoutSeconds"))
	over := time.After(time.Duration(seconds) * time.Second)
	out, in := io.Pipe()
	go func() {
		defer in.Close()
		for bookmark := time.After(time.Second); ; {
			m.mu.Lock()
			i, _ := slices.BinarySearchFunc(m.past, from+1, func(c change, rev int64) int { return int(c.rev - rev) })
			news, more, now, down := m.past[i:], m.more, m.rev, m.down
			m.mu.Unlock()
			if down {
				return
			}
			for _, c := range news {
				from = c.rev
				if text := c.seen(space, of); text != nil {
					if _, err := in.Write(text); err != nil {
						return
					}
				}
			}
			select {
			case <-more:
			case <-bookmark:
				from = max(from, now)
				l := &coordinationv1.Lease{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}}
				l.ResourceVersion = strconv.FormatInt(now, 10)
				if _, err := in.Write(event("BOOKMARK", l)); err != nil {
					return
				}
				bookmark = time.After(time.Second)
			case <-over:
				return
			case <-r.Context().Done():
				return
			}
		}
	}()
	return response(r, http.StatusOK, out), nil
}

// seen is the change as a watch with a selector shows it; nil: it does not.
func (c change) seen(space string, of labels.Selector) []byte {
	matches := func(l *coordinationv1.Lease) bool { return l != nil && of.Matches(labels.Set(l.Labels)) }
	before, after := matches(c.old), matches(c.now) && c.kind != "DELETED"
	switch {
	case !strings.HasPrefix(c.key, space+"/") || !before && !after:
		return nil
	case !before:
		return event("ADDED", c.now)
	case !after:
		return event("DELETED", c.now)
	}
	return event("MODIFIED", c.now)
}

func event(kind string, l *coordinationv1.Lease) []byte {
	text, err := json.Marshal(map[string]any{"type": kind, "object": l})
	if err != nil {
		panic(err)
	}
	return append(text, '\n')
}

func reply(r *http.Request, answer any) *http.Response {
	code := http.StatusOK
	if err, ok := answer.(*apierrors.StatusError); ok {
		s := err.Status()
		s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		answer, code = &s, int(s.Code)
	}
	text, err := json.Marshal(answer)
	if err != nil {
		panic(err)
	}
	return response(r, code, io.NopCloser(strings.NewReader(string(text))))
}

func response(r *http.Request, code int, body io.ReadCloser) *http.Response {
	return &http.Response{
		StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: r,
	}
}
