package collector

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/vethexporter/vethexporter/internal/metric"
	"github.com/vethexporter/vethexporter/internal/netns"
)

// noLimit is more series than a scrape can have.
const noLimit = 1 << 30

// worker is a goroutine on a thread of its own that does the reading of one scrape after another.
type worker struct {
	s       *Scraper
	turns   chan *turn
	visitor *netns.Visitor
	batch   *metric.Batch
	idle    time.Time // since when it has nothing to do; the scraper's lock guards it
}

func newWorker(s *Scraper) *worker {
	w := &worker{s: s, turns: make(chan *turn, 1), batch: metric.NewBatch(s.schema)}
	netns.OnThread(w.serve)
	return w
}

// serve works until the thread is no longer fit for it. The thread ends with it.
func (w *worker) serve() {
	defer func() {
		if w.visitor != nil {
			w.visitor.Close()
		}
	}()
	for t := range w.turns {
		fit := w.attempt(t)
		fit = w.s.leave(w, t, fit)
		close(t.done)
		if !fit {
			return
		}
	}
}

// attempt runs the job and tells whether the thread is fit for another. After a panic outside of a collector it may be in any
// namespace.
func (w *worker) attempt(t *turn) (fit bool) {
	defer func() {
		if p := recover(); p != nil {
			w.s.count(discovering, reasonBug, nil, fmt.Errorf("%w: panic: %v\n%s", errBug, p, debug.Stack()))
			fit = false
		}
	}()
	if w.visitor == nil {
		visitor, err := netns.NewVisitor(w.s.opts.Visitor)
		if err != nil {
			w.s.count(discovering, reasonRead, nil, err)
			return false
		}
		w.visitor = visitor
	}
	if err := w.run(t); err != nil {
		w.s.count(discovering, reasonRead, nil, err)
		t.again = errors.Is(err, netns.ErrStranded)
		return !t.again
	}
	return true
}

// run does what is left of the job: first the node's own numbers, then each namespace.
func (w *worker) run(t *turn) error {
	w.visitor.NextScrape()
	if err := w.visitor.Home(func(view *netns.View) {
		for {
			c, ok := t.job.nextNode(t)
			if !ok {
				return
			}
			w.collect(t, c, place{what: c.Name}, nil, func(ctx context.Context, sink *metric.Sink) error {
				return c.Node(ctx, view, sink)
			})
		}
	}); err != nil {
		return err
	}
	w.discover(t)
	for {
		v, ok := t.job.nextVisit(t)
		if !ok {
			break
		}
		if err := w.visit(t, v); errors.Is(err, netns.ErrStranded) {
			return err
		}
	}
	var whole *Whole
	for {
		c, ok := t.job.nextJoin(t)
		if !ok {
			return nil
		}
		if whole == nil {
			whole = t.job.whole() // once for all of them: they share what they derive from it
		}
		w.collect(t, c, place{key: joining, what: c.Name}, nil, func(ctx context.Context, sink *metric.Sink) error {
			return c.Join(ctx, whole, sink)
		})
	}
}

// discover finds the namespaces, unless the job has them from a worker before.
func (w *worker) discover(t *turn) {
	j := t.job
	if !j.begin(t, func() (place, bool) { return place{what: discovering}, j.found == nil }) {
		return
	}
	if w.s.isStuck(place{what: discovering}) {
		j.end(t, func() { j.found = &netns.Found{} })
		return
	}
	start := time.Now()
	found, err := w.s.opts.Discovery.Discover(j.ctx)
	if err != nil {
		if _, reason := classify(err); reason != "" { // else the time was up
			w.s.count(discovering, reason, nil, err)
		}
		found = &netns.Found{}
	} else {
		w.s.forget(found.Namespaces)
	}
	for _, err := range found.Errs {
		w.s.warnOnce(err.Error(), "Discovery is not complete; this is logged once", "err", err)
	}
	if found.Unidentified > 0 {
		w.s.warnOnce("ptrace", "CAP_SYS_PTRACE is missing: some namespaces are known by their /proc files only, and not entered", "namespaces", found.Unidentified)
	}
	visits, excluded := w.s.order(found.Namespaces)
	j.end(t, func() {
		j.found, j.visits, j.excluded, j.discovery = found, visits, excluded, time.Since(start)
		j.complete = err == nil
	})
}

// visit enters one namespace and runs every collector there.
func (w *worker) visit(t *turn, v *visit) error {
	j := t.job
	if w.s.isStuck(place{key: v.ns.Key, what: entering}) {
		j.endVisit(t, v, outcomeSkipped, false)
		return nil
	}
	entered := false
	err := w.visitor.Visit(v.ns, func(view *netns.View) {
		entered = true
		if view.Entered {
			first := w.s.sighting(v.ns.Key, view.Cookie)
			j.end(t, func() { v.first = first })
		}
		for {
			c, ok := j.nextRun(t, v)
			if !ok {
				break
			}
			w.collect(t, c, place{key: v.ns.Key, what: c.Name}, v, func(ctx context.Context, sink *metric.Sink) error {
				return c.Netns(ctx, view, sink)
			})
		}
		if view.Entered && j.joins() {
			w.keep(t, v, view)
		}
	})
	o, reason := classify(err)
	if o == outcomeDenied {
		w.s.warnOnce("admin", "CAP_SYS_ADMIN is missing: other namespaces are read through /proc/PID/net only, those without a process not at all", "err", err)
	}
	if j.endVisit(t, v, o, entered) && reason != "" {
		w.s.count(discovering, reason, v.ns, err)
	}
	return err
}

// keep keeps what the collectors that look at several namespaces want of this one.
func (w *worker) keep(t *turn, v *visit, view *netns.View) {
	j := t.job
	at := place{key: v.ns.Key, what: relating}
	if w.s.isStuck(at) || !j.begin(t, func() (place, bool) { return at, true }) {
		j.end(t, func() { v.worsen(outcomeSkipped) })
		return
	}
	seen, err := w.visitor.See(view, j.seenSoFar())
	o, reason := classify(err)
	if j.end(t, func() {
		if v.worsen(o); seen != nil {
			j.seen = append(j.seen, seen)
		}
	}) && reason != "" {
		w.s.count(discovering, reason, v.ns, err)
	}
}

// collect runs one collector at one place, for the namespace of v unless that is nil, and keeps what it gave if that is
// whole.
func (w *worker) collect(t *turn, c *Collector, at place, v *visit, fn func(context.Context, *metric.Sink) error) {
	w.batch.Reset()
	name, left, ns := "", noLimit, (*netns.Namespace)(nil)
	if v != nil {
		name, ns = v.ns.Name, v.ns
		if w.s.opts.MaxSeries > 0 && !ns.Host {
			left = max(w.s.opts.MaxSeries-v.series, 0)
		}
	}
	if w.s.isStuck(at) {
		t.job.endRun(t, c, v, outcomeSkipped, 0, w.batch)
		return
	}
	start := time.Now()
	sink := w.batch.Sink(w.s.table[c], name, left)
	err := call(t.job.ctx, fn, &sink)
	o, reason := classify(err)
	if o != outcomeOK && o != outcomeCapped {
		sink.Discard()
	} else if at.key == joining {
		// What is joined is right, but not all of it: say so.
		if worst := t.job.missing(); severity[worst] > severity[o] {
			o = worst
		}
	}
	if t.job.endRun(t, c, v, o, time.Since(start), w.batch) && reason != "" {
		w.s.count(c.Name, reason, ns, err)
	}
}

// call runs a collector's function. A panic is an error of the collector; the thread is still where it was.
func call(ctx context.Context, fn func(context.Context, *metric.Sink) error, sink *metric.Sink) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: panic: %v\n%s", errBug, p, debug.Stack())
		}
	}()
	if err := fn(ctx, sink); err != nil {
		return err
	}
	if err := sink.Err(); err != nil && !errors.Is(err, metric.ErrCapped) {
		return fmt.Errorf("%w: %w", errBug, err)
	}
	return sink.Err()
}
