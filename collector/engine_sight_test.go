package collector

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

func firstSeen(t *testing.T, s samples, ns string) float64 {
	t.Helper()
	return s.value(t, "veth_netns_first_seen_timestamp_seconds{netns=%q}", ns)
}

// TestFirstSeen: the time stays as long as the namespace does, whatever is scraped meanwhile, and is another for a namespace
// that takes over the name, even if it got the inode too.
func TestFirstSeen(t *testing.T) {
	nettest.Root(t)
	dir := t.TempDir()
	old := nettest.Named(t, dir, "a")
	e := newEngine(t, in(dir), steady("one"))
	before := float64(time.Now().UnixMilli()) / 1000
	first := firstSeen(t, e.scrape(engineTimeout), "named:a")
	if now := float64(time.Now().UnixMilli()) / 1000; first < before || first > now {
		t.Errorf("first seen at %.3f, between %.3f and %.3f", first, before, now)
	}
	for range 3 {
		if got := firstSeen(t, e.scrape(engineTimeout), "named:a"); got != first {
			t.Errorf("first seen at %.3f, then at %.3f", first, got)
		}
	}
	for range 10 { // the kernel gives the inode to one of the next namespaces, as a rule
		old.Delete(t)
		time.Sleep(2 * time.Millisecond) // the time is told in milliseconds
		old = nettest.Named(t, dir, "a")
		again := firstSeen(t, e.scrape(engineTimeout), "named:a")
		if again <= first {
			t.Fatalf("another namespace was first seen at %.3f, the one before at %.3f", again, first)
		}
		first = again
	}
}

// TestForget: what is kept of a namespace goes with it, and only then.
func TestForget(t *testing.T) {
	nettest.Root(t)
	dir := t.TempDir()
	a, b := nettest.Named(t, dir, "a"), nettest.Named(t, dir, "b")
	e := newEngine(t, in(dir), steady("one"))
	keys := func() (kept []uint64) {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, ns := range []*nettest.NS{a, b} {
			for key := range e.seen {
				if key.Ino == ns.Ino {
					kept = append(kept, ns.Ino)
				}
			}
		}
		return kept
	}
	e.scrape(engineTimeout)
	if got := keys(); len(got) != 2 {
		t.Errorf("kept of %d namespaces, want 2", len(got))
	}
	b.Delete(t)
	e.scrape(engineTimeout)
	if got := keys(); len(got) != 1 || got[0] != a.Ino {
		t.Errorf("kept of %v, want %d", got, a.Ino)
	}
	// The sighting of a namespace that another one replaced under its key is replaced too.
	key := netns.Key{Dev: 1, Ino: 1}
	one := e.sighting(key, 100)
	if again := e.sighting(key, 100); !again.Equal(one) {
		t.Errorf("seen at %v, then at %v", one, again)
	}
	time.Sleep(time.Millisecond)
	if other := e.sighting(key, 200); !other.After(one) {
		t.Errorf("seen at %v, another at %v", one, other)
	}
	e.forget(nil)
	if len(e.seen) != 0 {
		t.Errorf("%d sightings of nothing", len(e.seen))
	}
}

// TestGoneBeforeItIsRead: a namespace that ends between its discovery and its visit leaves no trace, and is no failure.
func TestGoneBeforeItIsRead(t *testing.T) {
	nettest.Root(t)
	dir := t.TempDir()
	nettest.Named(t, dir, "a")
	b := nettest.Named(t, dir, "b")
	deleted := false
	r := &recorder{stop: func(seen []string) bool {
		if len(seen) > 0 && seen[len(seen)-1] == "named:a" && !deleted {
			deleted = true
			b.Delete(t)
		}
		return false
	}}
	e := newEngine(t, in(dir), r.collector())
	_, got := r.scrape(e)
	got.expect(t, map[string]float64{
		faredAs(outcomeGone): 1, faredAs(outcomeOK): 2, runsOf("recorder", outcomeGone): 1, successOf("recorder"): 1,
		errorsOf(discovering, reasonRead): 0,
	})
	for series := range got {
		if match, _ := filepath.Match(`*netns="named:b"*`, series); match {
			t.Errorf("series %s", series)
		}
	}
}
