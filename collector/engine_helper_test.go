package collector

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vethexporter/vethexporter/internal/metric"
	"github.com/vethexporter/vethexporter/internal/netns"
)

// The tests of the engine run collectors of their own in real namespaces: the host's, and where they need another one, such
// as they make. A scrape has this long unless it is about the deadline; a read counts as hanging after a quarter of that.
const engineTimeout = 20 * time.Second

// probe makes a collector with one metric, a gauge with the labels netns and item. It runs fn in each namespace.
func probe(name string, fn func(ctx context.Context, v *netns.View, emit func(value float64, item string)) error) *Collector {
	def := &metric.Def{Name: "veth_" + name, Labels: []string{metric.NetnsLabel, "item"}, Help: "Test."}
	return &Collector{Name: name, Metrics: []*metric.Def{def}, Netns: func(ctx context.Context, v *netns.View, sink *metric.Sink) error {
		return fn(ctx, v, func(value float64, item string) { sink.Emit(def, value, item) })
	}}
}

// steady makes a collector that always works.
func steady(name string) *Collector {
	return probe(name, func(_ context.Context, _ *netns.View, emit func(float64, string)) error {
		emit(1, "steady")
		return nil
	})
}

// nodeProbe makes a collector with one metric without labels, that runs once for the node.
func nodeProbe(name string, fn func(ctx context.Context, v *netns.View) (float64, error)) *Collector {
	def := &metric.Def{Name: "veth_" + name, Help: "Test."}
	return &Collector{Name: name, Metrics: []*metric.Def{def}, Node: func(ctx context.Context, v *netns.View, sink *metric.Sink) error {
		value, err := fn(ctx, v)
		sink.Emit(def, value) // also after an error: it must not get out
		return err
	}}
}

// engine is a scraper under test, with what it logged.
type engine struct {
	*Scraper
	t   testing.TB
	log *logBuffer
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newEngine makes a scraper of the host's namespace, and of others as change says.
func newEngine(t testing.TB, change func(*Options), collectors ...*Collector) *engine {
	t.Helper()
	log := &logBuffer{}
	opts := Options{
		Collectors: collectors, Concurrent: 1, Include: regexp.MustCompile(`^host$`),
		Discovery: &netns.Discovery{Proc: "/proc"}, Visitor: netns.VisitorOptions{Proc: "/proc", Sys: "/sys"},
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	}
	if change != nil {
		change(&opts)
	}
	s, err := NewScraper(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return &engine{Scraper: s, t: t, log: log}
}

// in has the engine also look at the namespaces that are mounted in dir.
func in(dir string) func(*Options) {
	return func(o *Options) {
		o.Discovery.Named = []string{dir}
		o.Include = regexp.MustCompile(`^(host|named:.*)$`)
	}
}

// scrape scrapes once with all collectors, and returns the series.
func (e *engine) scrape(timeout time.Duration) samples {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return e.scrapeWith(ctx, e.Collectors())
}

func (e *engine) scrapeWith(ctx context.Context, collectors []*Collector) samples {
	e.t.Helper()
	snap, err := e.Scrape(ctx, collectors)
	if err != nil {
		e.t.Fatal(err)
	}
	defer e.Release(snap)
	return e.series(snap.AppendText(nil))
}

// series reads an exposition.
func (e *engine) series(text []byte) samples {
	e.t.Helper()
	got := samples{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		if err != nil {
			e.t.Error(err)
		}
		if _, ok := got[line[:at]]; ok {
			e.t.Errorf("series %s is there twice", line[:at])
		}
		got[line[:at]] = value
	}
	return got
}

// expect fails the test unless these series have these values.
func (s samples) expect(t testing.TB, want map[string]float64) {
	t.Helper()
	for series, value := range want {
		if got, ok := s[series]; !ok || got != value {
			t.Errorf("%s = %v (there: %v), want %v", series, got, ok, value)
		}
	}
}

// runs returns the name of the series that counts a collector's runs of one outcome; success, errors and fared likewise.
func runsOf(collector string, o outcome) string {
	return `veth_scrape_collector_runs{collector="` + collector + `",outcome="` + string(o) + `"}`
}

func successOf(collector string) string {
	return `veth_scrape_collector_success{collector="` + collector + `"}`
}

func errorsOf(collector, reason string) string {
	return `veth_scrape_errors_total{collector="` + collector + `",reason="` + reason + `"}`
}

func faredAs(o outcome) string { return `veth_scrape_netns{outcome="` + string(o) + `"}` }

func item(name, ns, what string) string {
	return `veth_` + name + `{netns="` + ns + `",item="` + what + `"}`
}

// eventually fails the test if cond does not become true in good time.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not in 20 s", what)
		}
	}
}
