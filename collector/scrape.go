package collector

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/vethexporter/vethexporter/internal/metric"
	"github.com/vethexporter/vethexporter/internal/netns"
)

const (
	// grace is how long after its deadline a scrape waits for its thread to notice.
	grace = 20 * time.Millisecond
	// hungAfter is how long a thread that missed the deadline must stay away for its read to be called hung. A short deadline
	// alone says nothing.
	hungAfter = 2 * time.Second
	// maxIdle is how long a worker may have nothing to do, while another has: it keeps descriptors for namespaces that ended
	// since.
	maxIdle = 5 * time.Minute
	// maxWarnings bounds the warnings that are logged once each.
	maxWarnings = 1000
	// maxLostThreads bounds the threads that hang in the kernel. With so many, scrapes take what needs no new one.
	maxLostThreads = 16
)

// ErrBusy says that other scrapes took all of the time.
var ErrBusy = errors.New("too many scrapes at a time")

// Options configures a Scraper.
type Options struct {
	Collectors []*Collector // those that are enabled
	Discovery  *netns.Discovery
	Visitor    netns.VisitorOptions
	Include    *regexp.Regexp // names of the namespaces to report; nil for all
	Exclude    *regexp.Regexp // names of those not to; nil for none
	MaxSeries  int            // of one namespace in one scrape
	Concurrent int            // scrapes at a time
	Logger     *slog.Logger
}

// Scraper finds the namespaces, visits each once per scrape, and runs all collectors in that visit. It is safe for
// concurrent use.
type Scraper struct {
	opts   Options
	schema *metric.Schema
	table  map[*Collector]int // number of the collector's table in the schema
	slots  chan struct{}
	snaps  sync.Pool

	mu     sync.Mutex
	idle   []*worker
	stuck  map[place]bool // what a lost thread hangs in
	lost   int
	errs   map[failure]float64
	seen   map[netns.Key]sight
	warned map[string]bool
	resume string // the namespace that the last scrape had no time for
}

// place is one thing that a thread may hang in: a collector's read in one namespace, the entry into it, or the discovery.
type place struct {
	key  netns.Key
	what string
}

const (
	discovering = "discovery"
	entering    = "entry"
	relating    = "relations" // finding the peers and tunnels for the collectors that join namespaces
)

// joining stands for a namespace where a collector looks at all of them.
var joining = netns.Key{Dev: 1<<64 - 1}

type failure struct {
	collector, reason string
}

// sight is when a namespace was first entered, and its cookie: what tells it from a later one with its inode.
type sight struct {
	cookie uint64
	first  time.Time
}

// NewScraper returns a scraper. It reads nothing yet.
func NewScraper(opts Options) (*Scraper, error) {
	tables := [][]*metric.Def{}
	s := &Scraper{
		opts: opts, table: map[*Collector]int{}, slots: make(chan struct{}, max(opts.Concurrent, 1)),
		stuck: map[place]bool{}, errs: map[failure]float64{}, seen: map[netns.Key]sight{}, warned: map[string]bool{},
	}
	for i, c := range opts.Collectors {
		s.table[c] = i
		tables = append(tables, c.Metrics)
	}
	schema, err := metric.NewSchema(append(tables, scrapeMetrics)...)
	if err != nil {
		return nil, err
	}
	s.schema = schema
	s.snaps.New = func() any { return metric.NewSnapshot(schema) }
	return s, nil
}

// Collectors returns those that are enabled.
func (s *Scraper) Collectors() []*Collector { return s.opts.Collectors }

// Check discovers the namespaces once and logs what was found and what is missing. It fails if procfs cannot be read.
func (s *Scraper) Check(ctx context.Context) error {
	found, err := s.opts.Discovery.Discover(ctx)
	if err != nil {
		return err
	}
	s.logFound(found)
	return nil
}

func (s *Scraper) logFound(found *netns.Found) {
	log := s.opts.Logger
	switch {
	case !found.HostKnown:
		log.Warn("Cannot tell which network namespace is the host's: process 1 is not to be seen in procfs", "procfs", s.opts.Discovery.Proc)
	case found.HomeIsHost():
		log.Info("Running in the host's network namespace", "inode", found.Home.Ino, "found", len(found.Namespaces))
	default:
		log.Warn("Not running in the host's network namespace; it is read from outside, which takes CAP_SYS_ADMIN",
			"own_inode", found.Home.Ino, "host_inode", found.Namespaces[0].Inode(), "found", len(found.Namespaces))
	}
	if s.opts.Discovery.OwnProcessesOnly() {
		log.Warn("procfs shows the processes of this container only: share the host's process namespace, or mount its procfs and set --path.procfs", "procfs", s.opts.Discovery.Proc)
	}
}

// Scrape reads all namespaces with the given collectors, some of those enabled. It returns when all is read or ctx ends,
// with what was whole by then. The caller gives the snapshot back with Release. ErrBusy is its only error.
func (s *Scraper) Scrape(ctx context.Context, collectors []*Collector) (*metric.Snapshot, error) {
	start := time.Now()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, ErrBusy
	}
	j := s.newJob(ctx, collectors)
	s.supervise(j)
	return s.finish(j, start), nil
}

// Release takes back a snapshot that is no longer read.
func (s *Scraper) Release(snap *metric.Snapshot) {
	snap.Reset()
	s.snaps.Put(snap)
}

// supervise runs the job on a worker until it is done or its time is up. A worker that hangs in one read is left behind with
// its thread, and another goes on with the rest.
func (s *Scraper) supervise(j *job) {
	patience := time.Second
	if end, ok := j.ctx.Deadline(); ok {
		patience = min(max(time.Until(end)/4, 200*time.Millisecond), 2*time.Second)
	}
	tick := time.NewTicker(patience / 4)
	defer tick.Stop()
	t := s.start(j)
	for t != nil {
		select {
		case <-t.done:
			if !t.again {
				return
			}
			t = s.start(j)
		case <-j.ctx.Done():
			at := j.seal()
			select {
			case <-t.done:
			case <-time.After(grace):
				s.lose(t, at, false)
			}
			return
		case <-tick.C:
			if at, hangs := j.revoke(patience); hangs {
				s.lose(t, at, true)
				t = s.start(j)
			}
		}
	}
}

// start gives the job to an idle worker or to a new one. It returns nil if too many threads are lost.
func (s *Scraper) start(j *job) *turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	var w *worker
	if last := len(s.idle) - 1; last >= 0 {
		w, s.idle = s.idle[last], s.idle[:last]
	} else if s.lost >= maxLostThreads {
		return nil
	} else {
		w = newWorker(s)
	}
	t := &turn{job: j, done: make(chan struct{})}
	j.give(t)
	w.turns <- t
	return t
}

// lose gives up on a worker, unless it just came back. What it hangs in, or proves to hang in, is left alone until it does.
func (s *Scraper) lose(t *turn, at place, hangs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.left {
		return
	}
	t.lost, t.at = true, at
	s.lost++
	if hangs {
		s.hung(at)
		return
	}
	time.AfterFunc(hungAfter, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !t.left {
			s.hung(at)
		}
	})
}

// hung marks what a thread hangs in. The caller holds mu.
func (s *Scraper) hung(at place) {
	s.stuck[at] = true
	s.errs[failure{at.collector(), reasonHung}]++
	s.opts.Logger.Error("A read of the kernel hangs; its thread is left behind", "what", at.what, "inode", at.key.Ino)
}

// collector returns the name that errors at p are counted under.
func (p place) collector() string {
	if p.what == entering || p.what == relating || p.what == "" {
		return discovering
	}
	return p.what
}

// leave ends a worker's turn. It tells whether the worker may serve again.
func (s *Scraper) leave(w *worker, t *turn, fit bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.left = true
	if t.lost {
		s.lost--
		delete(s.stuck, t.at)
		fit = false
	}
	if fit {
		w.idle = time.Now()
		s.idle = append(slices.DeleteFunc(s.idle, func(other *worker) bool {
			old := w.idle.Sub(other.idle) > maxIdle
			if old {
				close(other.turns)
			}
			return old
		}), w)
	}
	return fit
}

func (s *Scraper) isStuck(p place) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stuck[p]
}

// Close ends the idle workers. Scrapes must have ended.
func (s *Scraper) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.idle {
		close(w.turns)
	}
	s.idle = nil
}

// order puts first the namespace that the last scrape had no time for, after the host's.
func (s *Scraper) order(all []*netns.Namespace) (wanted []*visit, excluded int) {
	s.mu.Lock()
	resume := s.resume
	s.mu.Unlock()
	at := 0
	for _, n := range all {
		if s.opts.Include != nil && !s.opts.Include.MatchString(n.Name) || s.opts.Exclude != nil && s.opts.Exclude.MatchString(n.Name) {
			excluded++
			continue
		}
		if n.Name == resume {
			at = len(wanted)
		}
		wanted = append(wanted, &visit{ns: n})
	}
	if at > 0 {
		first := 0
		if wanted[0].ns.Host {
			first = 1
		}
		wanted = slices.Concat(wanted[:first], wanted[at:], wanted[first:at])
	}
	return wanted, excluded
}

// sighting notes that a namespace was entered, and returns when that happened first.
func (s *Scraper) sighting(key netns.Key, cookie uint64) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.seen[key]; ok && old.cookie == cookie {
		return old.first
	}
	first := time.Now()
	s.seen[key] = sight{cookie: cookie, first: first}
	return first
}

// forget drops the sightings of namespaces that are not there any more.
func (s *Scraper) forget(present []*netns.Namespace) {
	keep := make(map[netns.Key]bool, len(present))
	for _, n := range present {
		keep[n.Key] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.seen {
		if !keep[key] {
			delete(s.seen, key)
		}
	}
}

// count counts a failed run and logs the first of its kind.
func (s *Scraper) count(collector, reason string, ns *netns.Namespace, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs[failure{collector, reason}]++
	level := slog.LevelDebug
	if key := collector + " " + reason; !s.warned[key] {
		s.warned[key] = true
		level = slog.LevelError
	}
	name := ""
	if ns != nil {
		name = ns.Name
	}
	s.opts.Logger.Log(context.Background(), level, "Collector failed; more of this kind are logged at level debug",
		"collector", collector, "netns", name, "reason", reason, "err", err)
}

// warnOnce logs once that a capability is missing.
func (s *Scraper) warnOnce(key, text string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.warned[key] && len(s.warned) < maxWarnings { // keys may hold what an engine says
		s.warned[key] = true
		s.opts.Logger.Warn(text, args...)
	}
}

// classify sorts the error of one run.
func classify(err error) (outcome, string) {
	switch {
	case err == nil:
		return outcomeOK, ""
	case errors.Is(err, metric.ErrCapped):
		return outcomeCapped, ""
	case errors.Is(err, netns.ErrUnsupported):
		return outcomeUnsupported, ""
	case errors.Is(err, netns.ErrDenied):
		return outcomeDenied, ""
	case errors.Is(err, netns.ErrGone):
		return outcomeGone, ""
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return outcomeSkipped, ""
	case isParse(err):
		return outcomeFailed, reasonParse
	case errors.Is(err, errBug):
		return outcomeFailed, reasonBug
	default:
		return outcomeFailed, reasonRead
	}
}

// errBug marks a mistake of a collector.
var errBug = errors.New("bug in the collector")
