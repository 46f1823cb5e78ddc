package netns_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

// TestConntrackBothWays: ctnetlink and procfs tell the same of a namespace that tracks connections, and conntrack -S agrees.
func TestConntrackBothWays(t *testing.T) {
	a, r, b := nettest.Routed(t)
	r.TrackState(t)
	const flows = 200
	nettest.UDPBurst(t, a, b.IP, 10000, flows)
	var kernel, file *netns.Conntrack
	withVisitor(t, netns.VisitorOptions{}, func(v *netns.Visitor) {
		if err := v.Visit(netns.NewNamespace(keyOf(t, r.Path), r.Path), func(view *netns.View) {
			var err error
			if kernel, err = view.Conntrack(); err != nil {
				t.Error(err)
			}
			text, err := view.NetFile("stat/nf_conntrack")
			if err != nil {
				t.Error(err)
			}
			if file, err = netns.ParseConntrack(text); err != nil {
				t.Error(err)
			}
		}); err != nil {
			t.Error(err)
		}
	})
	if t.Failed() {
		return
	}
	if kernel.Entries < flows/2 {
		t.Errorf("%d entries", kernel.Entries)
	}
	if diff := cmp.Diff(file, kernel); diff != "" {
		t.Errorf("(-procfs +ctnetlink)\n%s", diff)
	}
	stats := r.ConntrackStats(t)
	for counter, name := range map[int]string{
		netns.ConntrackFound: "found", netns.ConntrackInvalid: "invalid", netns.ConntrackInsert: "insert",
		netns.ConntrackInsertFailed: "insert_failed", netns.ConntrackDrop: "drop", netns.ConntrackEarlyDrop: "early_drop",
		netns.ConntrackError: "error", netns.ConntrackSearchRestart: "search_restart",
	} {
		if kernel.Counters[counter] != stats[name] {
			t.Errorf("%s: %d, conntrack -S says %d", name, kernel.Counters[counter], stats[name])
		}
	}
}

// TestConntrackWithoutNetAdmin: where ctnetlink is refused, the file tells.
func TestConntrackWithoutNetAdmin(t *testing.T) {
	a, r, b := nettest.Routed(t)
	r.TrackState(t)
	nettest.UDPBurst(t, a, b.IP, 10000, 50)
	want := r.ConntrackCount(t)
	withVisitor(t, netns.VisitorOptions{}, func(v *netns.Visitor) {
		dropCapabilities(t, unix.CAP_NET_ADMIN)
		if err := v.Visit(netns.NewNamespace(keyOf(t, r.Path), r.Path), func(view *netns.View) {
			ct, err := view.Conntrack()
			if err != nil || ct.Entries != want {
				t.Errorf("%+v, error %v, want %d entries", ct, err, want)
			}
		}); err != nil {
			t.Error(err)
		}
	})
}

// TestConntrackOfTheHost needs no privilege: what cannot be read is said to be denied or absent, never 0.
func TestConntrackOfTheHost(t *testing.T) {
	withVisitor(t, netns.VisitorOptions{}, func(v *netns.Visitor) {
		if err := v.Home(func(view *netns.View) {
			ct, err := view.Conntrack()
			if err != nil && !errors.Is(err, netns.ErrDenied) && !errors.Is(err, netns.ErrUnsupported) {
				t.Error(err)
			}
			if err == nil && !ct.Has[netns.ConntrackDrop] {
				t.Errorf("no counters: %+v", ct)
			}
		}); err != nil {
			t.Error(err)
		}
	})
}
