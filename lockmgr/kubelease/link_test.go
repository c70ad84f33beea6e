package kubelease_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"
)

// link is what requests go through to the API server. The zero value passes them
// all on.
type link struct {
	mu   sync.Mutex
	rule func(*call) fate // GUARDED_BY(mu)
	past []*call          // GUARDED_BY(mu)
	cuts []func()         // GUARDED_BY(mu); each ends the answer to a watch
	hung atomic.Bool      // watches that stand show nothing more
}

// hangUp ends what the server has to say to watches.
func (l *link) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, cut := range l.cuts {
		cut()
	}
	l.cuts = nil
}

// tap passes an answer on until it is cut: that is its end.
func (l *link) tap(resp *http.Response, err error) (*http.Response, error) {
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	body, hung := resp.Body, false
	go func() {
		_, err := io.Copy(writer(func(p []byte) (int, error) {
			if hung = hung || l.hung.Load(); hung {
				return len(p), nil
			}
			return w.Write(p)
		}), body)
		w.CloseWithError(err)
	}()
	resp.Body = &tapped{r, body}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cuts = append(l.cuts, func() { w.Close() })
	return resp, nil
}

type writer func([]byte) (int, error)

func (f writer) Write(p []byte) (int, error) { return f(p) }

type tapped struct {
	*io.PipeReader
	body io.Closer
}

func (t *tapped) Close() error { t.PipeReader.Close(); return t.body.Close() }

// call is a request on its way.
type call struct {
	verb string // create, update, delete, get, list, peek (a list of one), name (a list of the one of that name) or watch
	text string // path and body: has the name of the Lease
	sent chan struct{}
	done chan struct{} // closed when it was answered, or failed
}

// fate is what becomes of a call.
type fate int

const (
	passed    fate = iota
	cut            // it is not sent, and fails
	swallowed      // it is carried out, and the answer is lost
	repeated       // it is carried out, and then sent once more
	late           // it fails, and is sent later: when call.send is called
	gone           // it is answered 410
	busy           // it is answered 429
	contested      // it is answered 409, as by a quota while much is created
	astray         // it is answered 404, by something that is no API server
)

var errLink = errors.New("the link is broken")

// obey makes rule decide from now on.
func (l *link) obey(rule func(*call) fate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rule = rule
}

func (l *link) mend() { l.obey(nil) }

// calls returns the calls so far whose verb is among verbs, but for those of the
// janitor's election, and those by which a mount shows that it is a keeper.
func (l *link) calls(verbs ...string) (found []*call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.past {
		for _, v := range verbs {
			if c.verb == v && !c.has("-janitor") && !(v == "update" && c.has("-session-")) {
				found = append(found, c)
			}
		}
	}
	return found
}

func (l *link) count(verbs ...string) int { return len(l.calls(verbs...)) }

// send has a late call sent, and waits for what becomes of it.
func (c *call) send(t *testing.T) {
	t.Helper()
	close(c.sent)
	c.wait(t)
}

func (c *call) wait(t *testing.T) {
	t.Helper()
	select {
	case <-c.done:
	case <-within(t, patience).Done():
		t.Fatal("a call is not answered")
	}
}

// to makes conf's requests go through the link.
func (l *link) to(conf *rest.Config) *rest.Config {
	conf = rest.CopyConfig(conf)
	conf.Wrap(func(next http.RoundTripper) http.RoundTripper { return &hop{l, next} })
	return conf
}

type hop struct {
	link *link
	next http.RoundTripper
}

func (h *hop) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		body, _ = io.ReadAll(req.Body)
		req.Body.Close()
	}
	again := func(ctx context.Context) *http.Request {
		r := req.Clone(ctx)
		r.Body = io.NopCloser(bytes.NewReader(body))
		return r
	}
	c := &call{verb: verb(req), text: req.URL.Path + string(body), sent: make(chan struct{}), done: make(chan struct{})}
	h.link.mu.Lock()
	h.link.past = append(h.link.past, c)
	rule := h.link.rule
	h.link.mu.Unlock()
	f := passed
	if rule != nil {
		f = rule(c)
	}
	if f != late {
		defer close(c.done)
	}
	switch f {
	case cut:
		return nil, errLink
	case swallowed:
		resp, err := h.next.RoundTrip(again(req.Context()))
		if err == nil {
			resp.Body.Close()
		}
		return nil, errLink
	case repeated:
		resp, err := h.next.RoundTrip(again(req.Context()))
		if err != nil {
			return nil, err
		}
		resp.Body.Close()
	case late:
		go func() {
			defer close(c.done)
			<-c.sent
			if resp, err := h.next.RoundTrip(again(context.WithoutCancel(req.Context()))); err == nil {
				resp.Body.Close()
			}
		}()
		return nil, errLink
	case gone:
		return answer(req, http.StatusGone, "Expired"), nil
	case busy:
		return answer(req, http.StatusTooManyRequests, "TooManyRequests"), nil
	case contested:
		return answer(req, http.StatusConflict, "Conflict"), nil
	case astray:
		resp := answer(req, http.StatusNotFound, "")
		resp.Header.Set("Content-Type", "text/plain")
		resp.Body = io.NopCloser(strings.NewReader("default backend - 404"))
		return resp, nil
	}
	if c.verb == "watch" {
		return h.link.tap(h.next.RoundTrip(again(req.Context())))
	}
	return h.next.RoundTrip(again(req.Context()))
}

// answer is the server's, that it does not do what is asked.
func answer(req *http.Request, code int, reason string) *http.Response {
	text := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"so it is","reason":%q,"code":%d}`, reason, code)
	return &http.Response{
		StatusCode: code, Status: fmt.Sprint(code, " ", http.StatusText(code)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(text)),
	}
}

func verb(req *http.Request) string {
	switch req.Method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodDelete:
		return "delete"
	}
	switch {
	case req.URL.Query().Has("watch"):
		return "watch"
	case req.URL.Query().Has("limit"):
		return "peek"
	case req.URL.Query().Has("fieldSelector"):
		return "name"
	case strings.HasSuffix(req.URL.Path, "/leases"):
		return "list"
	}
	return "get"
}

// first returns a rule that has the first call which fits meet its fate.
func first(f fate, fits func(*call) bool) (rule func(*call) fate, met <-chan *call) {
	ch := make(chan *call, 1)
	var once sync.Once
	return func(c *call) (result fate) {
		if fits(c) {
			once.Do(func() { result = f; ch <- c })
		}
		return result
	}, ch
}

// writes fits the writes of Leases of a kind.
func writes(kind string, verbs ...string) func(*call) bool {
	return func(c *call) bool {
		for _, v := range verbs {
			if c.verb == v && strings.Contains(c.text, "-"+kind) {
				return true
			}
		}
		return false
	}
}

func (c *call) has(part string) bool { return strings.Contains(c.text, part) }
