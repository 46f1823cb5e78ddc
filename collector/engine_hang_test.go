package collector

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vethexporter/vethexporter/internal/metric"
	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

// hangTimeout is the deadline of scrapes in which something hangs: they take a quarter of it at least.
const hangTimeout = time.Second

// gate blocks its callers until it is opened.
type gate struct {
	once sync.Once
	open chan struct{}
}

func newGate(t *testing.T) *gate {
	g := &gate{open: make(chan struct{})}
	t.Cleanup(g.release) // a thread that hangs for ever would hold up the end of the test
	return g
}

func (g *gate) release() { g.once.Do(func() { close(g.open) }) }

// lost returns how many threads hang.
func (e *engine) lostThreads() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lost
}

// TestHungCollector: a collector that hangs costs itself and one thread, whatever the number of scrapes; when it comes back,
// it is used again, and what it brings from then is thrown away.
func TestHungCollector(t *testing.T) {
	g := newGate(t)
	var calls atomic.Int64
	hung := probe("hung", func(_ context.Context, _ *netns.View, emit func(float64, string)) error {
		call := calls.Add(1)
		<-g.open // it does not heed its context: a system call would not either
		emit(float64(call), "call")
		return nil
	})
	e := newEngine(t, nil, steady("before"), hung, steady("after"))
	whole := map[string]float64{
		item("before", "host", "steady"): 1, item("after", "host", "steady"): 1, successOf("before"): 1, successOf("after"): 1,
		successOf("hung"): 0, runsOf("hung", outcomeSkipped): 1, runsOf("hung", outcomeOK): 0, errorsOf("hung", reasonHung): 1,
		"veth_scrape_lost_threads": 1, faredAs(outcomeSkipped): 1,
	}
	start := time.Now()
	got := e.scrape(hangTimeout)
	if took := time.Since(start); took > hangTimeout+5*time.Second { // it should be a quarter; a busy machine takes longer
		t.Errorf("took %v", took)
	}
	got.expect(t, whole)
	got.absent(t, "veth_hung{")
	threads := nettest.Threads()
	for range 20 {
		got := e.scrape(engineTimeout) // what hangs is known by now, and not waited for
		got.expect(t, whole)
		got.absent(t, "veth_hung{")
	}
	if now := nettest.Threads(); now > threads+10 { // Go starts a few of its own; a leak would be one for each scrape
		t.Errorf("%d threads after the first scrape, %d after 20 more", threads, now)
	}
	if calls.Load() != 1 {
		t.Errorf("the hung collector was called %d times", calls.Load())
	}
	if log := e.log.String(); strings.Count(log, "hangs") != 1 || !strings.Contains(log, "what=hung") {
		t.Errorf("log: %s", log)
	}

	g.release()
	eventually(t, "the thread is back", func() bool { return e.lostThreads() == 0 })
	got = e.scrape(engineTimeout)
	got.expect(t, map[string]float64{
		item("hung", "host", "call"): 2, // that of the second call; the first one's came too late
		successOf("hung"):            1, runsOf("hung", outcomeSkipped): 0, errorsOf("hung", reasonHung): 1, "veth_scrape_lost_threads": 0,
		faredAs(outcomeOK): 1,
	})
}

// TestHungOpen has a thread hang in the kernel, where no signal of Go's gets it out: in open(2) of a FIFO that stands for a
// file of procfs.
func TestHungOpen(t *testing.T) {
	proc := t.TempDir()
	for _, name := range []string{"thread-self", "self", "sys"} {
		if err := os.Symlink(filepath.Join("/proc", name), filepath.Join(proc, name)); err != nil {
			t.Fatal(err)
		}
	}
	softirqs := filepath.Join(proc, "softirqs")
	if err := unix.Mkfifo(softirqs, 0o600); err != nil {
		t.Fatal(err)
	}
	const content = "CPU0\nNET_RX: 5\n"
	release := func() {
		f, err := os.OpenFile(softirqs, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return // nobody waits
		}
		defer f.Close()
		fmt.Fprint(f, content)
	}
	t.Cleanup(release)
	e := newEngine(t, func(o *Options) { o.Visitor.Proc = proc }, steady("before"), newSoftirq(), steady("after"))
	for range 2 {
		got := e.scrape(hangTimeout)
		got.expect(t, map[string]float64{
			successOf("before"): 1, successOf("after"): 1, item("after", "host", "steady"): 1,
			successOf("softirq"): 0, runsOf("softirq", outcomeSkipped): 1, errorsOf("softirq", reasonHung): 1, "veth_scrape_lost_threads": 1,
		})
		got.absent(t, "veth_softirqs_total")
	}
	release()
	eventually(t, "the thread is back", func() bool { return e.lostThreads() == 0 })
	if err := os.Remove(softirqs); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(softirqs, []byte(strings.ReplaceAll(content, "5", "6")), 0o600); err != nil {
		t.Fatal(err)
	}
	e.scrape(engineTimeout).expect(t, map[string]float64{
		successOf("softirq"): 1, `veth_softirqs_total{cpu="0",type="NET_RX"}`: 6, "veth_scrape_lost_threads": 0,
	})
}

// TestHungInOneNamespace: what hangs in one namespace works in the others, and hangs in no other collector.
func TestHungInOneNamespace(t *testing.T) {
	nettest.Root(t)
	g, dir := newGate(t), t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		nettest.Named(t, dir, name)
	}
	picky := probe("picky", func(_ context.Context, v *netns.View, emit func(float64, string)) error {
		if v.Namespace.Name == "named:b" {
			<-g.open
		}
		emit(1, "done")
		return nil
	})
	e := newEngine(t, in(dir), steady("before"), picky, steady("after"))
	for range 2 {
		got := e.scrape(hangTimeout)
		for _, ns := range []string{"host", "named:a", "named:b", "named:c"} {
			got.expect(t, map[string]float64{item("before", ns, "steady"): 1, item("after", ns, "steady"): 1})
			if ns != "named:b" {
				got.expect(t, map[string]float64{item("picky", ns, "done"): 1})
			}
		}
		got.absent(t, `veth_picky{netns="named:b"`)
		got.expect(t, map[string]float64{
			runsOf("picky", outcomeOK): 3, runsOf("picky", outcomeSkipped): 1, faredAs(outcomeOK): 3, faredAs(outcomeSkipped): 1,
			successOf("picky"): 0, "veth_scrape_lost_threads": 1,
		})
	}
	// The thread that hangs is inside, and so keeps the namespace; when it is back, nothing does.
	g.release()
	eventually(t, "the thread is back", func() bool { return e.lostThreads() == 0 })
	e.scrape(engineTimeout).expect(t, map[string]float64{item("picky", "named:b", "done"): 1, faredAs(outcomeOK): 4})
}

// TestManyHung: however many reads hang, threads are bounded, each scrape returns, and all is well when they are back.
func TestManyHung(t *testing.T) {
	g := newGate(t)
	var collectors []*Collector
	for i := range maxLostThreads + 8 {
		collectors = append(collectors, probe(fmt.Sprintf("hung%c", 'a'+i), func(_ context.Context, _ *netns.View, emit func(float64, string)) error {
			<-g.open
			emit(1, "done")
			return nil
		}))
	}
	e := newEngine(t, nil, collectors...)
	for round := 0; round < 60 && e.lostThreads() < maxLostThreads; round++ {
		e.scrape(250 * time.Millisecond)
	}
	threads := nettest.Threads()
	for range 10 {
		e.scrape(250*time.Millisecond).absent(t, "veth_hung")
	}
	if lost, now := e.lostThreads(), nettest.Threads(); lost < maxLostThreads || lost > maxLostThreads+1 || now > threads+8 {
		t.Errorf("%d threads lost; %d threads, then %d", lost, threads, now)
	}
	g.release()
	eventually(t, "the threads are back", func() bool { return e.lostThreads() == 0 })
	got := e.scrape(engineTimeout)
	for _, c := range collectors {
		got.expect(t, map[string]float64{successOf(c.Name): 1, item(c.Name, "host", "done"): 1})
	}
}

// TestHungJoin: what looks at all namespaces together may hang too.
func TestHungJoin(t *testing.T) {
	g := newGate(t)
	def := &metric.Def{Name: "veth_joined", Help: "Test."}
	hung := &Collector{Name: "joined", Metrics: []*metric.Def{def}, Join: func(_ context.Context, whole *Whole, sink *metric.Sink) error {
		<-g.open
		sink.Emit(def, float64(len(whole.Seen)))
		return nil
	}}
	e := newEngine(t, nil, steady("before"), hung)
	for range 2 {
		got := e.scrape(hangTimeout)
		got.expect(t, map[string]float64{
			item("before", "host", "steady"): 1, successOf("before"): 1, successOf("joined"): 0, runsOf("joined", outcomeSkipped): 1,
			errorsOf("joined", reasonHung): 1, faredAs(outcomeOK): 1,
		})
		got.absent(t, "veth_joined")
	}
	g.release()
	eventually(t, "the thread is back", func() bool { return e.lostThreads() == 0 })
	e.scrape(engineTimeout).expect(t, map[string]float64{"veth_joined": 1, successOf("joined"): 1})
}

// TestHungDocker: an engine that accepts and never answers costs names, not namespaces, also in a short scrape.
func TestHungDocker(t *testing.T) {
	dir, err := os.MkdirTemp("", "vt") // the name of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	listener, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	e := newEngine(t, func(o *Options) { o.Discovery.Docker = netns.NewDocker(listener.Addr().String(), "/proc") }, steady("one"))
	for range 3 {
		e.scrape(800*time.Millisecond).expect(t, map[string]float64{
			item("one", "host", "steady"): 1, successOf("one"): 1, errorsOf(discovering, reasonHung): 0, "veth_scrape_lost_threads": 0,
		})
	}
}
