package collector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

// recorder is a collector that notes which namespaces it sees, and may end the scrape at one of them.
type recorder struct {
	mu     sync.Mutex
	seen   []string
	cancel func() // ends the scrape under way
	stop   func(seen []string) bool
}

func (r *recorder) collector() *Collector {
	return probe("recorder", func(_ context.Context, v *netns.View, emit func(float64, string)) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.seen = append(r.seen, v.Namespace.Name)
		emit(1, "seen")
		if r.stop != nil && r.stop(r.seen) {
			r.cancel()
		}
		return nil
	})
}

// scrape returns the namespaces that one scrape saw, in their order.
func (r *recorder) scrape(e *engine) ([]string, samples) {
	ctx, cancel := context.WithTimeout(context.Background(), engineTimeout)
	defer cancel()
	r.mu.Lock()
	r.seen, r.cancel = nil, cancel
	r.mu.Unlock()
	got := e.scrapeWith(ctx, e.Collectors())
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen), got
}

// letters makes namespaces named:a, named:b, and so on, and returns their folder.
func letters(t *testing.T, n int) string {
	t.Helper()
	nettest.Root(t)
	dir := t.TempDir()
	for i := range n {
		nettest.Named(t, dir, string(rune('a'+i)))
	}
	return dir
}

// TestCutScrapeGoesOn: a scrape that was cut short is followed by one that begins, after the host's namespace, where it was
// cut, and one that was not cut by one in the usual order.
func TestCutScrapeGoesOn(t *testing.T) {
	r := &recorder{stop: func(seen []string) bool { return slices.Contains(seen, "named:c") }}
	e := newEngine(t, in(letters(t, 5)), r.collector())
	seen, got := r.scrape(e)
	if want := []string{"host", "named:a", "named:b", "named:c"}; !slices.Equal(seen, want) {
		t.Errorf("first scrape saw %v, want %v", seen, want)
	}
	// The result of c may have come too late.
	got.expect(t, map[string]float64{item("recorder", "named:b", "seen"): 1, successOf("recorder"): 0, errorsOf("recorder", reasonHung): 0})
	if skipped := got[faredAs(outcomeSkipped)]; skipped != 2 && skipped != 3 {
		t.Errorf("%v namespaces skipped", skipped)
	}
	got.value(t, "veth_netns_processes{netns=%q}", "named:e") // it is known, although it was not read

	r.stop = nil
	seen, got = r.scrape(e)
	after := [][]string{
		{"host", "named:c", "named:d", "named:e", "named:a", "named:b"},
		{"host", "named:d", "named:e", "named:a", "named:b", "named:c"},
	}
	if !slices.Equal(seen, after[0]) && !slices.Equal(seen, after[1]) {
		t.Errorf("second scrape saw %v", seen)
	}
	got.expect(t, map[string]float64{faredAs(outcomeOK): 6, faredAs(outcomeSkipped): 0, successOf("recorder"): 1})

	if seen, _ = r.scrape(e); !slices.Equal(seen, []string{"host", "named:a", "named:b", "named:c", "named:d", "named:e"}) {
		t.Errorf("third scrape saw %v", seen)
	}
}

// TestTailIsNotStarved: if no scrape ever has time for all, each namespace still has its turn.
func TestTailIsNotStarved(t *testing.T) {
	r := &recorder{stop: func(seen []string) bool { return len(seen) == 3 }}
	e := newEngine(t, in(letters(t, 6)), r.collector())
	whole := map[string]int{}
	for range 12 {
		_, got := r.scrape(e)
		for series := range got {
			if strings.HasPrefix(series, "veth_recorder{") {
				whole[series]++
			}
		}
	}
	if len(whole) != 7 || whole[item("recorder", "host", "seen")] != 12 {
		t.Errorf("of 7 namespaces these were read: %v", whole)
	}
}

// TestSlowNamespaceStarvesNoOther: a namespace whose reads take longer than a whole scrape, although none of them hangs, does
// not keep the others from their turn.
func TestSlowNamespaceStarvesNoOther(t *testing.T) {
	const timeout = 400 * time.Millisecond
	dir := letters(t, 4)
	var mu sync.Mutex
	seen := map[string]int{}
	var collectors []*Collector
	for i := range 8 {
		collectors = append(collectors, probe(fmt.Sprintf("slow%c", 'a'+i), func(_ context.Context, v *netns.View, emit func(float64, string)) error {
			if v.Namespace.Name == "named:b" {
				time.Sleep(timeout / 6)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[v.Namespace.Name]++
			emit(1, "x")
			return nil
		}))
	}
	e := newEngine(t, in(dir), collectors...)
	for range 4 {
		e.scrape(timeout)
	}
	eventually(t, "all threads are back", func() bool { return e.lostThreads() == 0 })
	mu.Lock()
	defer mu.Unlock()
	for _, ns := range []string{"host", "named:a", "named:b", "named:c", "named:d"} {
		if seen[ns] == 0 {
			t.Errorf("%s was never read: %v", ns, seen)
		}
	}
}

// TestCancel: a client that goes away ends the scrape; that is nobody's fault.
func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	quits := probe("quits", func(ctx context.Context, _ *netns.View, emit func(float64, string)) error {
		emit(1, "half")
		cancel()
		return ctx.Err()
	})
	e := newEngine(t, nil, steady("before"), quits, steady("after"))
	got := e.scrapeWith(ctx, e.Collectors())
	got.expect(t, map[string]float64{
		item("before", "host", "steady"): 1, runsOf("quits", outcomeSkipped): 1, runsOf("after", outcomeSkipped): 1,
		successOf("before"): 1, successOf("quits"): 0, successOf("after"): 0, faredAs(outcomeSkipped): 1,
	})
	got.absent(t, "veth_quits{")
	got.absent(t, "veth_after{")
	for _, reason := range []string{reasonRead, reasonParse, reasonBug} {
		got.expect(t, map[string]float64{errorsOf("quits", reason): 0, errorsOf(discovering, reason): 0})
	}
}

// TestAnyDeadlineIsNoError cuts scrapes at all kinds of moments, also within the discovery: what was not read is skipped, and
// nothing failed.
func TestAnyDeadlineIsNoError(t *testing.T) {
	e := newEngine(t, func(o *Options) { o.Include = nil }, All()...)
	for i := range 150 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*100*time.Microsecond)
		if snap, err := e.Scrape(ctx, e.Collectors()); err == nil { // else its time was over before it began
			e.Release(snap)
		}
		cancel()
	}
	got := e.scrape(engineTimeout)
	for series, value := range got {
		if strings.HasPrefix(series, "veth_scrape_errors_total") && value > 0 && !strings.Contains(series, `reason="hung"`) {
			t.Errorf("%s = %v\n%s", series, value, e.log)
		}
	}
}

// TestBusy: a scrape that gets no turn within its time says so; the one that is under way is whole.
func TestBusy(t *testing.T) {
	g, begun := newGate(t), make(chan struct{})
	e := newEngine(t, nil, probe("slow", func(_ context.Context, _ *netns.View, emit func(float64, string)) error {
		close(begun)
		<-g.open
		emit(1, "done")
		return nil
	}))
	done := make(chan samples)
	go func() { done <- e.scrape(time.Minute) }() // so that it is not taken for hanging soon
	<-begun
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if snap, err := e.Scrape(ctx, e.Collectors()); !errors.Is(err, ErrBusy) || snap != nil {
		t.Errorf("second scrape: %v, %v", snap, err)
	}
	g.release()
	(<-done).expect(t, map[string]float64{item("slow", "host", "done"): 1, successOf("slow"): 1})
}

// TestIncludeExclude: namespaces that are not wanted are neither entered nor reported, but counted.
func TestIncludeExclude(t *testing.T) {
	dir := letters(t, 4)
	for _, tt := range []struct {
		include, exclude string
		want             []string
	}{
		{"named:.", "", []string{"named:a", "named:b", "named:c", "named:d"}},
		{"host|named:[ab]", "", []string{"host", "named:a", "named:b"}},
		{"host|named:.", "named:[ab]", []string{"host", "named:c", "named:d"}},
		{"named:a", "named:.", nil},
	} {
		t.Run(tt.include+" "+tt.exclude, func(t *testing.T) {
			r := &recorder{}
			e := newEngine(t, func(o *Options) {
				o.Discovery.Named = []string{dir}
				o.Include = regexp.MustCompile("^(" + tt.include + ")$")
				if tt.exclude != "" {
					o.Exclude = regexp.MustCompile("^(" + tt.exclude + ")$")
				}
			}, r.collector())
			seen, got := r.scrape(e)
			if !slices.Equal(seen, tt.want) {
				t.Errorf("saw %v, want %v", seen, tt.want)
			}
			if excluded := got[faredAs(outcomeExcluded)]; excluded < float64(5-len(tt.want)) { // there may be others on this machine
				t.Errorf("%v excluded", excluded)
			}
			for series := range got {
				for _, ns := range []string{"host", "named:a", "named:b", "named:c", "named:d"} {
					if strings.Contains(series, fmt.Sprintf("netns=%q", ns)) && !slices.Contains(tt.want, ns) {
						t.Errorf("series %s", series)
					}
				}
			}
		})
	}
}

// TestCheckLogs: what an operator is told at the start. Only a failure of procfs stops it.
func TestCheckLogs(t *testing.T) {
	e := newEngine(t, nil)
	if err := e.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if log := e.log.String(); !strings.Contains(log, "host's network namespace") {
		t.Errorf("log: %s", log)
	}
	e = newEngine(t, func(o *Options) { o.Discovery.Proc = t.TempDir() + "/missing" })
	if err := e.Check(t.Context()); err == nil {
		t.Error("no error without procfs")
	}
	empty := t.TempDir() // a procfs that shows no process
	e = newEngine(t, func(o *Options) { o.Discovery.Proc = empty })
	if err := e.Check(t.Context()); err != nil || !strings.Contains(e.log.String(), "Cannot tell which network namespace is the host's") {
		t.Errorf("error %v, log: %s", err, e.log)
	}
}

// TestTwoOfOneName: a scraper whose collectors claim one metric twice is refused at the start.
func TestTwoOfOneName(t *testing.T) {
	if _, err := NewScraper(Options{Collectors: []*Collector{steady("one"), steady("one")}, Logger: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("accepted")
	}
}
