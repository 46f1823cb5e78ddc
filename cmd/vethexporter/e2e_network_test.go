package main_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/vethexporter/vethexporter/internal/nettest"
)

// TestReorder holds back segments on their way: only the receiver queues out of order, and only the sender learns of it.
func TestReorder(t *testing.T) {
	relay := nettest.NewRelay(t, nettest.RelayOptions{HoldEvery: 50, HoldBy: 3})
	bystander := nettest.New(t)
	sender, receiver := relay.A, relay.B
	e := start(t, mounts(sender, receiver, bystander)...)
	names := nstatNames(t)
	const ofo, reorder = "veth_tcp_ofo_queue_total", "veth_tcp_sack_reorder_total"

	hostBefore := nstat(t, nettest.Host())
	before := e.scrape(t)
	hostBetween := nstat(t, nettest.Host())
	nettest.TCPFlow(t, sender, receiver, relay.AddrB, nettest.FlowOptions{Bytes: 20 << 20, Congestion: "reno"})
	if relay.Held.Load() == 0 {
		t.Fatal("nothing was held back")
	}
	// The last acknowledgements are still under way when the last byte has arrived.
	var s *scrape
	eventually(t, 10*time.Second, "counters are still", func() bool {
		nstats := func() []map[string]uint64 { return []map[string]uint64{nstat(t, sender), nstat(t, receiver)} }
		before := nstats()
		s = e.scrape(t)
		return reflect.DeepEqual(before, nstats())
	})
	hostAfter := nstat(t, nettest.Host())

	for _, n := range []*nettest.NS{sender, receiver, bystander} {
		now := nstat(t, n)
		compareTCP(t, s, names, inodeName(n), now, now)
	}
	rose := func(metric, netns string) float64 {
		return s.value(t, metric, "netns", netns) - before.value(t, metric, "netns", netns)
	}
	if rose(ofo, inodeName(receiver)) == 0 || rose(reorder, inodeName(sender)) == 0 {
		t.Errorf("receiver queued %v out of order, sender learned of %v reorderings; %d segments were held back",
			rose(ofo, inodeName(receiver)), rose(reorder, inodeName(sender)), relay.Held.Load())
	}
	for _, still := range [][2]string{
		{ofo, inodeName(sender)}, {reorder, inodeName(receiver)}, {ofo, inodeName(bystander)}, {reorder, inodeName(bystander)},
	} {
		if got := rose(still[0], still[1]); got != 0 {
			t.Errorf("%s of %s rose by %v", still[0], still[1], got)
		}
	}
	// The node may have traffic of its own; nstat tells how much of that came out of order.
	compareTCP(t, before, names, "host", hostBefore, hostBetween)
	compareTCP(t, s, names, "host", hostBetween, hostAfter)
	if high := hostAfter["TcpExtTCPOFOQueue"] - hostBefore["TcpExtTCPOFOQueue"]; rose(ofo, "host") > float64(high) {
		t.Errorf("host queued %v out of order, nstat says at most %d", rose(ofo, "host"), high)
	}
}

// TestConntrackFull fills the table of a namespace that forwards. The limit is one for all, but only that namespace is full.
func TestConntrackFull(t *testing.T) {
	sender, router, receiver := nettest.Routed(t)
	router.TrackState(t)
	e := start(t, mounts(sender, router, receiver)...)
	host, before := nettest.Host().ConntrackStats(t), e.scrape(t)
	const limit = 97
	var full *scrape
	var entries, hostEntries uint64
	nettest.WithConntrackLimit(t, limit, func() {
		nettest.UDPBurst(t, sender, receiver.IP, 10000, 1000)
		full = e.scrape(t)
		entries, hostEntries = router.ConntrackCount(t), nettest.Host().ConntrackCount(t)
	})
	full.check(t, limit, "veth_conntrack_entries_limit")
	full.check(t, limit, "veth_conntrack_entries", "netns", inodeName(router))
	full.check(t, float64(entries), "veth_conntrack_entries", "netns", inodeName(router))
	rose := func(counter, netns string) float64 {
		name := "veth_conntrack_" + counter + "_total"
		return full.value(t, name, "netns", netns) - before.value(t, name, "netns", netns)
	}
	if rose("drop", inodeName(router))+rose("early_drop", inodeName(router)) == 0 {
		t.Error("nothing was dropped")
	}
	stats := router.ConntrackStats(t)
	for _, name := range []string{"drop", "early_drop"} {
		full.check(t, float64(stats[name]), "veth_conntrack_"+name+"_total", "netns", inodeName(router))
	}
	for _, n := range []*nettest.NS{sender, receiver} {
		full.check(t, 0, "veth_conntrack_entries", "netns", inodeName(n))
		if got := rose("drop", inodeName(n)); got != 0 {
			t.Errorf("%s dropped %v", inodeName(n), got)
		}
	}
	// The node may track connections of its own, but not those of the router.
	if got := full.value(t, "veth_conntrack_entries", "netns", "host"); got > float64(hostEntries)+10 {
		t.Errorf("host tracks %v, conntrack says %d", got, hostEntries)
	}
	if high := nettest.Host().ConntrackStats(t)["drop"] - host["drop"]; rose("drop", "host") > float64(high) {
		t.Errorf("host dropped %v, conntrack says at most %d", rose("drop", "host"), high)
	}
}
