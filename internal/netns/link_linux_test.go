package netns_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

// device is what both ip and this package tell of a device.
type device struct {
	Index          int
	Name, Kind     string
	Address        string
	MTU            int
	Up             bool
	Master         int
	Peer, PeerNSID int
}

// rxNames and txNames are ip's names for the counters, in the order of the kernel's structure.
var (
	rxNames = map[int]string{
		netns.ReceivePackets: "packets", netns.ReceiveBytes: "bytes", netns.ReceiveErrors: "errors", netns.ReceiveDropped: "dropped",
		netns.Multicast: "multicast", netns.ReceiveLengthErrors: "length_errors", netns.ReceiveCRCErrors: "crc_errors",
		netns.ReceiveFrameErrors: "frame_errors", netns.ReceiveFIFOErrors: "fifo_errors", netns.ReceiveOverErrors: "over_errors",
		netns.ReceiveMissedErrors: "missed_errors", netns.ReceiveNoHandler: "nohandler", netns.ReceiveOtherhostDropped: "otherhost_dropped",
	}
	txNames = map[int]string{
		netns.TransmitPackets: "packets", netns.TransmitBytes: "bytes", netns.TransmitErrors: "errors",
		netns.TransmitDropped: "dropped", netns.Collisions: "collisions", netns.TransmitAbortedErrors: "aborted_errors",
		netns.TransmitFIFOErrors: "fifo_errors", netns.TransmitCarrierErrors: "carrier_errors",
	}
)

// sameAsIP fails the test unless get returns what ip shows in n. The counters get several tries, as the kernel sends packets
// of its own accord at times; all else has to be right at once.
func sameAsIP(t *testing.T, n *nettest.NS, get func() []netns.Link) {
	t.Helper()
	for tries := 0; ; tries++ {
		got, shown := get(), n.IPLink(t)
		slices.SortFunc(shown, func(a, b nettest.IPLink) int { return a.Ifindex - b.Ifindex })
		if diff := cmp.Diff(shownDevices(shown), devices(got)); diff != "" {
			t.Fatalf("%s: (-ip +got)\n%s", n.Path, diff)
		}
		diff := counterDiff(shown, got)
		if diff == "" {
			return
		}
		if tries == 50 {
			t.Fatalf("%s: %s", n.Path, diff)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func shownDevices(shown []nettest.IPLink) (all []device) {
	index := map[string]int{}
	for _, l := range shown {
		index[l.Ifname] = l.Ifindex
	}
	for _, l := range shown {
		d := device{
			Index: l.Ifindex, Name: l.Ifname, Kind: l.LinkInfo.Kind, Address: l.Address, MTU: l.MTU, Master: index[l.Master],
			Up: slices.Contains(l.Flags, "UP"), Peer: l.LinkIndex, PeerNSID: -1,
		}
		if l.Ifname == "lo" {
			d.Kind = netns.KindLoopback
		}
		if l.Link != "" { // of the same namespace: ip prints its name
			d.Peer = index[l.Link]
		}
		if l.LinkNetnsID != nil {
			d.PeerNSID = *l.LinkNetnsID
		}
		all = append(all, d)
	}
	return all
}

func devices(links []netns.Link) (all []device) {
	for _, l := range links {
		all = append(all, device{
			Index: int(l.Index), Name: l.Name, Kind: l.Kind, Address: l.Address, MTU: int(l.MTU), Master: int(l.Master),
			Up: l.Up, Peer: int(l.Peer), PeerNSID: int(l.PeerNSID),
		})
	}
	return all
}

// counterDiff compares the counters that this ip prints.
func counterDiff(shown []nettest.IPLink, links []netns.Link) string {
	var b strings.Builder
	for i, l := range links {
		compare := func(names map[int]string, shown map[string]uint64) {
			for counter, name := range names {
				if want, ok := shown[name]; ok && want != l.Counters[counter] {
					fmt.Fprintf(&b, "%s: counter %d is %d, ip's %s is %d\n", l.Name, counter, l.Counters[counter], name, want)
				}
			}
		}
		compare(rxNames, shown[i].Stats64.RX)
		compare(txNames, shown[i].Stats64.TX)
	}
	return b.String()
}

// linksOf visits n and returns its devices.
func linksOf(t *testing.T, n *nettest.NS, maxDevices int) (links []netns.Link, capped bool) {
	t.Helper()
	withVisitor(t, netns.VisitorOptions{MaxDevices: maxDevices}, func(v *netns.Visitor) {
		if err := v.Visit(netns.NewNamespace(keyOf(t, n.Path), n.Path), func(view *netns.View) {
			got, more, err := view.Links()
			if err != nil {
				t.Error(err)
			}
			links, capped = slices.Clone(got), more
		}); err != nil {
			t.Error(err)
		}
	})
	return links, capped
}

func TestLinksAreThoseOfIP(t *testing.T) {
	a, b := nettest.New(t), nettest.New(t)
	_, bIP := nettest.Connect(t, a, "eth0", b, "eth0")
	nettest.UDPBurst(t, a, bIP, 1000, 20) // nobody listens
	nettest.Veth(t, a, "inner0", a, "inner1")
	a.Bridge(t, "br0")
	a.Enslave(t, "inner0", "br0")
	a.MTU(t, "inner1", 1400)
	a.Down(t, "inner1")
	for _, args := range [][]string{
		{"link", "add", "vx0", "mtu", "1450", "type", "vxlan", "id", "42", "dstport", "4789", "dev", "eth0"},
		{"link", "add", "mv0", "link", "eth0", "type", "macvlan", "mode", "bridge"},
		{"link", "set", "vx0", "up"},
		{"tuntap", "add", "tun0", "mode", "tun"},
	} {
		a.Exec(t, "ip", args...)
	}
	var links []netns.Link
	sameAsIP(t, a, func() []netns.Link {
		var capped bool
		if links, capped = linksOf(t, a, 0); capped {
			t.Error("capped without a limit")
		}
		return links
	})
	kinds := map[string]string{}
	for _, l := range links {
		kinds[l.Name] = l.Kind
	}
	want := map[string]string{"lo": "loopback", "eth0": "veth", "inner0": "veth", "inner1": "veth", "br0": "bridge", "vx0": "vxlan", "mv0": "macvlan", "tun0": "tun"}
	for name, kind := range want {
		if kinds[name] != kind {
			t.Errorf("%s is of kind %q, want %q", name, kinds[name], kind)
		}
	}
	for _, l := range links {
		if l.Name == "eth0" && (!l.HasCarrier || !l.Carrier || l.PeerNSID < 0 || l.Counters[netns.TransmitPackets] < 20) {
			t.Errorf("eth0: %+v", l)
		}
		if l.Name == "inner0" && l.Carrier {
			t.Errorf("inner0 has a carrier while its peer is down: %+v", l)
		}
	}
}

// TestHostLinksAreThoseOfIP reads the host's namespace, which is kept up to date by events. Other tests change it meanwhile,
// so only a device of this one's is looked at.
func TestHostLinksAreThoseOfIP(t *testing.T) {
	n := nettest.New(t)
	host := discover(t, &netns.Discovery{}).Namespaces[0]
	withVisitor(t, netns.VisitorOptions{MaxDevices: 1}, func(v *netns.Visitor) { // the limit is not for the host
		look := func(name string) (found *netns.Link) {
			if err := v.Visit(host, func(view *netns.View) {
				links, capped, err := view.Links()
				if err != nil || capped || len(links) < 2 {
					t.Errorf("%d links, capped %v, error %v", len(links), capped, err)
				}
				for _, l := range links {
					if l.Name == name {
						found = &l
					}
				}
			}); err != nil {
				t.Error(err)
			}
			return found
		}
		name := nettest.Unique()
		if l := look(name); l != nil {
			t.Errorf("before it is made: %+v", l)
		}
		nettest.Veth(t, nettest.Host(), name, n, "eth0")
		if l := look(name); l == nil || l.Kind != "veth" || !l.Up {
			t.Errorf("after it is made: %+v", l)
		}
		nettest.Host().MTU(t, name, 1234)
		if l := look(name); l == nil || l.MTU != 1234 {
			t.Errorf("after a change: %+v", l)
		}
		nettest.Host().DelLink(t, name)
		if l := look(name); l != nil {
			t.Errorf("after the end: %+v", l)
		}
	})
}

func TestLinksCap(t *testing.T) {
	n := nettest.New(t)
	n.Devices(t, 300)
	all := len(n.IPLink(t))
	for _, limit := range []int{1, 10, all - 1, all, all + 1, 0} {
		links, capped := linksOf(t, n, limit)
		want := all
		if limit > 0 {
			want = min(limit, all)
		}
		if len(links) != want || capped != (want < all) {
			t.Errorf("limit %d: %d of %d devices, capped %v", limit, len(links), all, capped)
		}
		if !slices.IsSortedFunc(links, func(a, b netns.Link) int { return int(a.Index - b.Index) }) {
			t.Errorf("limit %d: not ordered by index", limit)
		}
	}
}

// TestLinksDuringChurn: a dump that changes interrupt is no error, with a limit or without, and shows no device twice.
func TestLinksDuringChurn(t *testing.T) {
	n := nettest.New(t)
	n.Devices(t, 400)
	churning(t, n, func() {
		withVisitor(t, netns.VisitorOptions{MaxDevices: 300}, func(v *netns.Visitor) {
			for range 60 {
				if err := v.Visit(netns.NewNamespace(keyOf(t, n.Path), n.Path), func(view *netns.View) {
					links, capped, err := view.Links()
					if err != nil || !capped || len(links) == 0 {
						t.Errorf("%d links, capped %v, error %v", len(links), capped, err)
					}
				}); err != nil {
					t.Error(err)
				}
			}
		})
	})
}

// churning runs fn while devices of n come and go.
func churning(t *testing.T, n *nettest.NS, fn func()) {
	t.Helper()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		_ = netns.Do(n.Path, func() error {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return nil
				default:
				}
				l := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("churn%d", i%50)}}
				if netlink.LinkAdd(l) == nil {
					_ = netlink.LinkDel(l)
				}
			}
		})
	}()
	defer func() { close(stop); <-stopped }()
	fn()
}
