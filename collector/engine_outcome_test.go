package collector

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vethexporter/vethexporter/internal/metric"
	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

// TestOutcomes: however one collector fares, nothing of its run gets out unless it is whole or capped, it is counted as what
// it is, and the collectors beside it are whole.
func TestOutcomes(t *testing.T) {
	foreign := &metric.Def{Name: "veth_foreign"}
	for _, tt := range []struct {
		name    string
		run     func(sink *metric.Sink) error
		outcome outcome
		netns   outcome // of the namespace
		success float64
		reason  string // under which an error is counted, if it is one
		log     string
	}{
		{"read error", func(*metric.Sink) error { return errors.New("EIO or so") }, outcomeFailed, outcomeFailed, 0, reasonRead, "EIO or so"},
		{"parse error", func(*metric.Sink) error { return fmt.Errorf("file: %w", parseError{errors.New("what is that")}) },
			outcomeFailed, outcomeFailed, 0, reasonParse, "what is that"},
		{"panic", func(*metric.Sink) error { panic("oh no") }, outcomeFailed, outcomeFailed, 0, reasonBug, "panic: oh no"},
		{"out of range", func(s *metric.Sink) error { return []error{}[s.Len()] }, outcomeFailed, outcomeFailed, 0, reasonBug, "out of range"},
		{"foreign metric", func(s *metric.Sink) error { s.Emit(foreign, 1); return nil }, outcomeFailed, outcomeFailed, 0, reasonBug, "veth_foreign"},
		{"denied", func(*metric.Sink) error { return fmt.Errorf("ask: %w", netns.ErrDenied) }, outcomeDenied, outcomeDenied, 0, "", ""},
		{"gone", func(*metric.Sink) error { return fmt.Errorf("read: %w", netns.ErrGone) }, outcomeGone, outcomeOK, 1, "", ""},
		{"unsupported", func(*metric.Sink) error { return fmt.Errorf("read: %w", netns.ErrUnsupported) }, outcomeUnsupported, outcomeOK, 1, "", ""},
		{"deadline", func(*metric.Sink) error { return context.DeadlineExceeded }, outcomeSkipped, outcomeSkipped, 0, "", ""},
		{"fine", func(*metric.Sink) error { return nil }, outcomeOK, outcomeOK, 1, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			def := &metric.Def{Name: "veth_tested", Labels: []string{metric.NetnsLabel, "item"}, Help: "Test."}
			tested := &Collector{Name: "tested", Metrics: []*metric.Def{def}, Netns: func(_ context.Context, _ *netns.View, sink *metric.Sink) error {
				sink.Emit(def, 1, "early")
				return tt.run(sink)
			}}
			e := newEngine(t, nil, steady("before"), tested, steady("after"))
			for round := range 2 {
				got := e.scrape(engineTimeout)
				got.expect(t, map[string]float64{
					item("before", "host", "steady"): 1, item("after", "host", "steady"): 1,
					successOf("before"): 1, successOf("after"): 1, successOf("tested"): tt.success,
					runsOf("tested", tt.outcome): 1, runsOf("before", outcomeOK): 1, runsOf("after", outcomeOK): 1,
					faredAs(tt.netns): 1, `veth_netns_info{netns="host",container="",container_id="",pod="",namespace="",runtime="",inode="` + hostInode(t, e) + `",source="process"}`: 1,
				})
				if tt.outcome != outcomeOK {
					got.absent(t, "veth_tested{")
				}
				for _, reason := range errorReasons {
					want := 0.0
					if reason == tt.reason {
						want = float64(round + 1)
					}
					got.expect(t, map[string]float64{errorsOf("tested", reason): want, errorsOf("before", reason): 0, errorsOf(discovering, reason): 0})
				}
			}
			if tt.log == "" {
				if log := e.log.String(); strings.Contains(log, "level=ERROR") {
					t.Errorf("logged: %s", log)
				}
			} else if got := strings.Count(e.log.String(), tt.log); got < 1 || strings.Count(e.log.String(), "level=ERROR") != 1 {
				t.Errorf("not logged once: %s", e.log)
			}
		})
	}
}

// hostInode returns the host's inode as the engine knows it, "" where the kernel hides it.
func hostInode(t *testing.T, e *engine) string {
	t.Helper()
	found, err := e.opts.Discovery.Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return found.Namespaces[0].Inode()
}

// TestNodeOutcomes: what runs once for the node is counted as the rest, and costs no namespace.
func TestNodeOutcomes(t *testing.T) {
	e := newEngine(t, nil,
		nodeProbe("good", func(context.Context, *netns.View) (float64, error) { return 7, nil }),
		nodeProbe("bad", func(context.Context, *netns.View) (float64, error) { return 8, errors.New("no") }),
		nodeProbe("ugly", func(context.Context, *netns.View) (float64, error) { panic("no") }),
		steady("after"))
	got := e.scrape(engineTimeout)
	got.expect(t, map[string]float64{
		"veth_good": 7, successOf("good"): 1, successOf("bad"): 0, successOf("ugly"): 0, successOf("after"): 1,
		errorsOf("bad", reasonRead): 1, errorsOf("ugly", reasonBug): 1, faredAs(outcomeOK): 1, item("after", "host", "steady"): 1,
	})
	got.absent(t, "veth_bad")
	got.absent(t, "veth_ugly")
}

// TestSelectedCollectors: only those that a request asks for run, and only those are reported; errors are counted of all.
func TestSelectedCollectors(t *testing.T) {
	e := newEngine(t, nil, steady("one"), steady("two"))
	chosen, err := Select(e.Collectors(), []string{"two"})
	if err != nil {
		t.Fatal(err)
	}
	got := e.scrapeWith(t.Context(), chosen)
	got.expect(t, map[string]float64{item("two", "host", "steady"): 1, runsOf("two", outcomeOK): 1, errorsOf("one", reasonRead): 0})
	got.absent(t, "veth_one")
	got.absent(t, `veth_scrape_collector_success{collector="one"`)
}

// TestSeriesCap: a namespace gets as many series as the limit allows, over all collectors; what it got stays, and the host's
// has no limit.
func TestSeriesCap(t *testing.T) {
	nettest.Root(t)
	dir := t.TempDir()
	nettest.Named(t, dir, "a")
	many := func(name string) *Collector {
		return probe(name, func(_ context.Context, _ *netns.View, emit func(float64, string)) error {
			for i := range 10 {
				emit(float64(i), fmt.Sprint(i))
			}
			return nil
		})
	}
	e := newEngine(t, func(o *Options) { in(dir)(o); o.MaxSeries = 14 }, many("first"), many("second"), many("third"))
	got := e.scrape(engineTimeout)
	for collector, want := range map[string]int{"first": 10, "second": 4, "third": 0} {
		host, capped := 0, 0
		for series := range got {
			if strings.HasPrefix(series, "veth_"+collector+`{netns="host"`) {
				host++
			}
			if strings.HasPrefix(series, "veth_"+collector+`{netns="named:a"`) {
				capped++
			}
		}
		if host != 10 || capped != want {
			t.Errorf("%s: %d series of the host, %d of the other, want 10 and %d", collector, host, capped, want)
		}
		got.expect(t, map[string]float64{
			successOf(collector): 1, `veth_scrape_collector_series{collector="` + collector + `"}`: float64(10 + want),
		})
	}
	got.expect(t, map[string]float64{
		runsOf("first", outcomeCapped): 0, runsOf("second", outcomeCapped): 1, runsOf("third", outcomeCapped): 1,
		faredAs(outcomeCapped): 1, faredAs(outcomeOK): 1,
	})
	got.value(t, "veth_netns_processes{netns=%q}", "named:a") // its identity does not count against the limit
}
