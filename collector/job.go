package collector

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/vethexporter/vethexporter/internal/metric"
	"github.com/vethexporter/vethexporter/internal/netns"
)

// job is one scrape under way. Only the worker whose turn it is changes it; a worker that was given up on is refused, so
// that what comes back late from the kernel changes nothing.
type job struct {
	ctx        context.Context
	collectors []*Collector

	mu        sync.Mutex
	turn      *turn // whose turn it is; nil when the scrape is over
	at        place // what the worker does now
	since     time.Time
	snap      *metric.Snapshot
	node      int // next collector to run for the node
	found     *netns.Found
	complete  bool // the discovery succeeded
	excluded  int
	visits    []*visit
	next      int // next visit
	seen      []*netns.Seen
	join      int // next collector to run for all namespaces together
	runs      map[string]*runs
	discovery time.Duration
}

// visit is what the scrape knows of one namespace.
type visit struct {
	ns      *netns.Namespace
	next    int // next collector to run in it
	series  int
	outcome outcome // "" while it is not over
	first   time.Time
}

// severity orders the outcomes of runs by what they mean for their visit. Those not listed mean nothing for it.
var severity = map[outcome]int{outcomeOK: 1, outcomeCapped: 2, outcomeDenied: 3, outcomeFailed: 4, outcomeSkipped: 5}

// worsen keeps the outcome that says most.
func (v *visit) worsen(o outcome) {
	if severity[o] > severity[v.outcome] {
		v.outcome = o
	}
}

// runs is how one collector fared.
type runs struct {
	outcomes map[outcome]int
	duration time.Duration
	series   int
}

// turn is one worker's time at a job. The scraper's lock guards lost, at and left.
type turn struct {
	job  *job
	done chan struct{} // closed when the worker has left
	lost bool
	at   place
	left bool
	// again asks for another worker, as this one's thread is not fit to go on. The worker sets it before it leaves.
	again bool
}

func (s *Scraper) newJob(ctx context.Context, collectors []*Collector) *job {
	j := &job{ctx: ctx, collectors: collectors, snap: s.snaps.Get().(*metric.Snapshot), runs: map[string]*runs{}}
	for _, c := range collectors {
		j.runs[c.Name] = &runs{outcomes: map[outcome]int{}}
	}
	return j
}

// give makes it t's turn.
func (j *job) give(t *turn) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.turn, j.at, j.since = t, place{}, time.Now()
}

// seal ends the scrape, and returns what its worker is at.
func (j *job) seal() place {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.turn = nil
	return j.at
}

// revoke ends the turn of a worker that has been at one thing for that long, and goes on behind that. It returns what the
// thing is.
func (j *job) revoke(patience time.Duration) (at place, hangs bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.at == (place{}) || time.Since(j.since) <= patience {
		return place{}, false
	}
	j.turn = nil
	j.pass()
	return j.at, true
}

// pass goes on behind what the worker hangs in.
func (j *job) pass() {
	switch {
	case j.at.what == discovering:
		j.found = &netns.Found{}
	case j.at.what == relating:
		j.visits[j.next].worsen(outcomeSkipped)
		j.next++
	case j.at.what == entering:
		j.visits[j.next].worsen(outcomeSkipped)
		j.skipRest(j.visits[j.next])
		j.next++
	case j.found == nil:
		j.runs[j.at.what].outcomes[outcomeSkipped]++
		j.node++
	case j.next == len(j.visits):
		j.runs[j.at.what].outcomes[outcomeSkipped]++
		j.join++
	default:
		j.runs[j.at.what].outcomes[outcomeSkipped]++
		j.visits[j.next].worsen(outcomeSkipped)
		j.visits[j.next].next++
	}
}

// skipRest counts the collectors that did not get to run in v.
func (j *job) skipRest(v *visit) {
	for _, c := range j.collectors[v.next:] {
		if c.Netns != nil {
			j.runs[c.Name].outcomes[outcomeSkipped]++
			v.worsen(outcomeSkipped)
		}
	}
	v.next = len(j.collectors)
}

// begin notes what t's worker does next, if next knows something to do and it still is t's turn.
func (j *job) begin(t *turn, next func() (place, bool)) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.turn != t || j.ctx.Err() != nil {
		return false
	}
	at, ok := next()
	if ok {
		j.at, j.since = at, time.Now()
	}
	return ok
}

// end makes a change, and notes that the worker does nothing, if it still is t's turn. It tells so: of a worker that was
// given up on, nothing counts.
func (j *job) end(t *turn, change func()) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.turn != t {
		return false
	}
	change()
	j.at = place{}
	return true
}

// nextNode returns the next collector to run for the node.
func (j *job) nextNode(t *turn) (c *Collector, ok bool) {
	ok = j.begin(t, func() (place, bool) {
		for ; j.node < len(j.collectors); j.node++ {
			if c = j.collectors[j.node]; c.Node != nil {
				return place{what: c.Name}, true
			}
		}
		return place{}, false
	})
	return c, ok
}

// nextJoin returns the next collector to run for all namespaces together.
func (j *job) nextJoin(t *turn) (c *Collector, ok bool) {
	ok = j.begin(t, func() (place, bool) {
		for ; j.join < len(j.collectors); j.join++ {
			if c = j.collectors[j.join]; c.Join != nil {
				return place{key: joining, what: c.Name}, true
			}
		}
		return place{}, false
	})
	return c, ok
}

// whole returns what the scrape kept, once all visits are over.
func (j *job) whole() *Whole {
	j.mu.Lock()
	defer j.mu.Unlock()
	return &Whole{Seen: j.seen, Complete: j.excluded == 0 && j.found.Capped == 0 && len(j.seen) == len(j.visits)}
}

// missing returns the worst outcome of the visits that gave nothing to join, "" if there are none.
func (j *job) missing() outcome {
	j.mu.Lock()
	defer j.mu.Unlock()
	kept := make(map[*netns.Namespace]bool, len(j.seen))
	for _, s := range j.seen {
		kept[s.Namespace] = true
	}
	var worst visit
	if !j.complete {
		worst.outcome = outcomeSkipped
	}
	for _, v := range j.visits {
		if !kept[v.ns] {
			worst.worsen(v.outcome)
		}
	}
	return worst.outcome
}

// joins tells whether anything has to be kept of the namespaces.
func (j *job) joins() bool {
	return slices.ContainsFunc(j.collectors, func(c *Collector) bool { return c.Join != nil })
}

// seenSoFar returns what was kept until now. The worker whose turn it is may read it.
func (j *job) seenSoFar() []*netns.Seen {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.seen
}

// nextVisit returns the next namespace to enter.
func (j *job) nextVisit(t *turn) (v *visit, ok bool) {
	ok = j.begin(t, func() (place, bool) {
		if j.next == len(j.visits) {
			return place{}, false
		}
		v = j.visits[j.next]
		return place{key: v.ns.Key, what: entering}, true
	})
	return v, ok
}

// nextRun returns the next collector to run in v.
func (j *job) nextRun(t *turn, v *visit) (c *Collector, ok bool) {
	ok = j.begin(t, func() (place, bool) {
		for ; v.next < len(j.collectors); v.next++ {
			if c = j.collectors[v.next]; c.Netns != nil {
				return place{key: v.ns.Key, what: c.Name}, true
			}
		}
		return place{}, false
	})
	return c, ok
}

// endRun keeps what one run of a collector gave, at one of the three stages, and tells whether it counts.
func (j *job) endRun(t *turn, c *Collector, v *visit, o outcome, took time.Duration, b *metric.Batch) bool {
	return j.end(t, func() {
		r := j.runs[c.Name]
		r.outcomes[o]++
		r.duration += took
		r.series += b.Len()
		j.snap.Add(b)
		if v == nil && j.found == nil {
			j.node++
			return
		}
		if v == nil {
			j.join++
			return
		}
		v.worsen(o)
		v.series += b.Len()
		v.next++
	})
}

// endVisit closes the visit of v, which no collector saw if it was not entered.
func (j *job) endVisit(t *turn, v *visit, o outcome, entered bool) bool {
	return j.end(t, func() {
		if entered {
			j.skipRest(v)
			v.worsen(o)
		} else {
			for _, c := range j.collectors[v.next:] {
				if c.Netns != nil {
					j.runs[c.Name].outcomes[o]++
				}
			}
			v.outcome = o
		}
		j.next++
	})
}

// finish counts what was left undone, adds the scraper's own metrics, and returns the snapshot. Late workers are refused.
func (s *Scraper) finish(j *job, start time.Time) *metric.Snapshot {
	j.seal()
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, c := range j.collectors[j.node:] {
		if c.Node != nil {
			j.runs[c.Name].outcomes[outcomeSkipped]++
		}
	}
	for _, c := range j.collectors[j.join:] {
		if c.Join != nil {
			j.runs[c.Name].outcomes[outcomeSkipped]++
		}
	}
	if !j.complete {
		// Without the namespaces nothing is known of them, and that is no success.
		for _, c := range j.collectors {
			if c.Netns != nil {
				j.runs[c.Name].outcomes[outcomeSkipped]++
			}
		}
	}
	left, resume := j.visits[j.next:], ""
	if len(left) > 0 {
		resume = left[0].ns.Name
		if left[0].next > 0 && len(left) > 1 {
			resume = left[1].ns.Name // one that takes all the time, every time, must not keep the others from theirs
		}
	}
	for _, v := range left {
		v.worsen(outcomeSkipped)
		j.skipRest(v)
	}
	s.mu.Lock()
	s.resume = resume
	s.mu.Unlock()
	if j.found == nil {
		j.found = &netns.Found{}
	}

	b := metric.NewBatch(s.schema)
	own := len(s.opts.Collectors)
	sink := b.Sink(own, "", noLimit)
	s.emitCollectors(j, &sink)
	s.emitScrape(j, &sink, start)
	if err := sink.Err(); err != nil {
		s.count("exporter", reasonBug, nil, err)
	}
	for _, v := range j.visits {
		emitIdentity(b.Sink(own, v.ns.Name, noLimit), v)
	}
	j.snap.Add(b)
	return j.snap
}

func (s *Scraper) emitCollectors(j *job, sink *metric.Sink) {
	for _, c := range j.collectors {
		r := j.runs[c.Name]
		good := r.outcomes[outcomeFailed]+r.outcomes[outcomeDenied]+r.outcomes[outcomeSkipped] == 0
		sink.Emit(scrapeCollectorSuccess, truth(good), c.Name)
		sink.Emit(scrapeCollectorDuration, r.duration.Seconds(), c.Name)
		sink.Emit(scrapeCollectorSeries, float64(r.series), c.Name)
		for _, o := range runOutcomes {
			sink.Emit(scrapeCollectorRuns, float64(r.outcomes[o]), c.Name, string(o))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	names := []string{discovering}
	for _, c := range s.opts.Collectors {
		names = append(names, c.Name)
	}
	for _, name := range names {
		for _, reason := range errorReasons {
			sink.Emit(scrapeErrors, s.errs[failure{name, reason}], name, reason)
		}
	}
	sink.Emit(scrapeLostThreads, float64(s.lost))
}

func (s *Scraper) emitScrape(j *job, sink *metric.Sink, start time.Time) {
	outcomes := map[outcome]int{outcomeExcluded: j.excluded, outcomeCapped: j.found.Capped}
	sources := map[string]int{}
	for _, v := range j.visits {
		outcomes[v.outcome]++
		sources[v.ns.Source]++
	}
	for _, o := range netnsOutcomes {
		sink.Emit(scrapeNetns, float64(outcomes[o]), string(o))
	}
	for _, source := range []string{netns.SourceProcess, netns.SourceMount} {
		sink.Emit(scrapeNetnsFound, float64(sources[source]), source)
	}
	sink.Emit(scrapeHidden, float64(j.found.Unidentified))
	if j.found.HostKnown {
		sink.Emit(scrapeInHost, truth(j.found.HomeIsHost()))
	}
	sink.Emit(scrapeDuration, time.Since(start).Seconds())
	sink.Emit(scrapeDiscovery, j.discovery.Seconds())
}

// emitIdentity says whose namespace it is. One that ended while it was looked for leaves no trace.
func emitIdentity(sink metric.Sink, v *visit) {
	if v.outcome == outcomeGone {
		return
	}
	for _, c := range v.ns.Containers {
		sink.Emit(netnsInfo, 1, c.Name, c.ID, "", "", c.Runtime, v.ns.Inode(), v.ns.Source)
	}
	if len(v.ns.Containers) == 0 {
		sink.Emit(netnsInfo, 1, "", "", "", "", "", v.ns.Inode(), v.ns.Source)
	}
	sink.Emit(netnsProcesses, float64(v.ns.Processes))
	if !v.first.IsZero() {
		sink.Emit(netnsFirstSeen, float64(v.first.UnixMilli())/1000)
	}
}
