package collector

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

// TestScrapesDuringChurn runs several scrapes at a time while namespaces and their devices come and go. Each answer is sound
// by itself, the one namespace that stays is whole in each, nothing fails, and nothing is left over at the end.
func TestScrapesDuringChurn(t *testing.T) {
	nettest.Root(t)
	const scrapers = 4
	dir := t.TempDir()
	lasting := nettest.Named(t, dir, "lasting")
	lasting.Devices(t, 3)
	// The first scrapes wait for each other, so that each has a thread of its own from the start.
	var first sync.WaitGroup
	first.Add(scrapers)
	var begun atomic.Int64
	together := nodeProbe("together", func(context.Context, *netns.View) (float64, error) {
		if begun.Add(1) <= scrapers {
			first.Done()
			first.Wait()
		}
		return 1, nil
	})
	e := newEngine(t, func(o *Options) { in(dir)(o); o.Concurrent = scrapers }, append(All(), together)...)

	var stop atomic.Bool
	var rounds atomic.Int64
	scrapeAll := func(until func() bool) {
		var wg sync.WaitGroup
		for range scrapers {
			wg.Go(func() {
				for !until() {
					checkScrape(t, e)
					rounds.Add(1)
				}
			})
		}
		wg.Wait()
	}
	once := func() func() bool {
		var n atomic.Int64
		return func() bool { return n.Add(1) > 4*scrapers }
	}
	scrapeAll(once())
	base := measure()

	done := make(chan struct{})
	go func() { defer close(done); scrapeAll(stop.Load) }()
	for i := range 40 {
		n := nettest.Named(t, dir, fmt.Sprintf("churn%d", i%3))
		nettest.Veth(t, n, "eth0", lasting, "peer")
		n.Devices(t, 2)
		n.Delete(t) // its device in the other namespace goes with it
		lasting.WaitNoLink(t, "peer", 20*time.Second)
	}
	stop.Store(true)
	<-done
	t.Logf("%d scrapes", rounds.Load())

	// Each thread gives back what it keeps of namespaces that are gone within its next few scrapes, so all have to scrape.
	var now resources
	for end := time.Now().Add(20 * time.Second); ; {
		scrapeAll(once())
		// The runtime keeps threads of its own; 200 scrapes would show.
		if now = measure(); now.threads <= base.threads+15 && now.goroutines <= base.goroutines && now.fds <= base.fds {
			break
		}
		if time.Now().After(end) {
			t.Errorf("threads, goroutines and descriptors were %+v and are %+v", base, now)
			break
		}
	}
	if lost := e.lostThreads(); lost != 0 {
		t.Errorf("%d threads lost", lost)
	}
	for _, reason := range []string{reasonRead, reasonParse, reasonBug} {
		for _, c := range append([]string{discovering}, names(All())...) {
			if n := e.errorCount(c, reason); n > 0 {
				t.Errorf("%s: %v errors of reason %s\n%s", c, n, reason, e.log)
			}
		}
	}
}

func names(collectors []*Collector) (names []string) {
	for _, c := range collectors {
		names = append(names, c.Name)
	}
	return names
}

func (e *engine) errorCount(collector, reason string) float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.errs[failure{collector, reason}]
}

// checkScrape scrapes once and looks at what came. It may run on any goroutine.
func checkScrape(t *testing.T, e *engine) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // nothing here hangs
	defer cancel()
	snap, err := e.Scrape(ctx, e.Collectors())
	if err != nil {
		t.Error(err)
		return
	}
	defer e.Release(snap)
	text := snap.AppendText(nil)
	got := e.series(text)
	for _, name := range []string{"lo", "d0", "d1", "d2"} {
		if _, ok := got[`veth_device_mtu_bytes{netns="named:lasting",device="`+name+`"}`]; !ok {
			t.Errorf("no device %s of the namespace that stays", name)
		}
	}
	if _, ok := got[`veth_tcp_in_segs_total{netns="host"}`]; !ok {
		t.Error("no TCP counters of the host")
	}
	for series, value := range got {
		if strings.HasPrefix(series, "veth_scrape_collector_success") && value != 1 {
			t.Errorf("%s = %v", series, value)
		}
	}
}

// resources is what a leak would raise.
type resources struct {
	threads, goroutines, fds int
}

func measure() resources {
	runtime.GC() // descriptors of views that are no longer used
	return resources{nettest.Threads(), runtime.NumGoroutine(), nettest.OpenFDs()}
}

// TestCloseGivesAllBack: after Close no thread of the scraper is left, and no descriptor.
func TestCloseGivesAllBack(t *testing.T) {
	run := func() {
		e := newEngine(t, nil, All()...)
		for range 3 {
			e.scrape(engineTimeout)
		}
		e.Close()
	}
	run()
	base := measure()
	for range 10 {
		run()
	}
	eventually(t, "as few threads, goroutines and descriptors as before", func() bool {
		now := measure()
		return now.threads <= base.threads+5 && now.goroutines <= base.goroutines && now.fds <= base.fds
	})
}

// TestScrapesLeaveNamespacesAlone: between two scrapes nothing of the scraper keeps a namespace: it ends as soon as its last
// process or mount does.
func TestScrapesLeaveNamespacesAlone(t *testing.T) {
	nettest.Root(t)
	dir := t.TempDir()
	e := newEngine(t, func(o *Options) { in(dir)(o); o.Include = nil }, All()...)
	for name, make := range map[string]func() *nettest.NS{
		"process": func() *nettest.NS { return nettest.WithProcess(t) },
		"mount":   func() *nettest.NS { return nettest.Named(t, dir, "a") },
	} {
		t.Run(name, func(t *testing.T) {
			n, dev := make(), nettest.Unique()
			nettest.Veth(t, nettest.Host(), dev, n, "eth0")
			for range 2 {
				e.scrape(engineTimeout)
			}
			n.Delete(t)
			nettest.Host().WaitNoLink(t, dev, 10*time.Second)
		})
	}
}
