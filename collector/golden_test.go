package collector

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/safchain/ethtool"

	"github.com/vethexporter/vethexporter/internal/metric"
	"github.com/vethexporter/vethexporter/internal/netns"
)

var update = flag.Bool("update", false, "write the golden files of testdata")

// fixture is one kernel generation: a tree of its files in testdata, and what it tells by netlink.
type fixture struct {
	name      string
	namespace *netns.Namespace
	told      netns.Told
	overlay   *netns.Overlay
	others    []*netns.Seen // namespaces that the scrape saw besides
	peers     map[int]int   // place of a link to that of its peer in the first of others
}

func fixtures() []fixture {
	counted := func(l netns.Link, counters int) netns.Link {
		for i := range counters {
			l.Counters[i] = uint64(l.Index)*1000 + uint64(i)
		}
		l.Counted = counters
		return l
	}
	lo := netns.Link{
		Index: 1, Name: "lo", Kind: netns.KindLoopback, Address: "00:00:00:00:00:00", Up: true, Carrier: true, HasCarrier: true,
		MTU: 65536, PeerNSID: -1, ReceiveQueues: 1, TransmitQueues: 1,
	}
	ct := &netns.Conntrack{Entries: 1234}
	for _, c := range conntrackCounters {
		ct.Counters[c.id], ct.Has[c.id] = uint64(c.id)*11, true
	}
	return []fixture{
		{
			name:      "kernel-6.18",
			namespace: &netns.Namespace{Key: netns.Key{Dev: 4, Ino: 4026531840}, Name: netns.HostName, Host: true},
			told: netns.Told{
				Conntrack: ct,
				Qdiscs: []netns.Qdisc{
					{Device: "eth0", Kind: "mq", Parent: "root", Bytes: 5000, Packets: 50},
					{Device: "eth0", Kind: "fq_codel", Parent: ":1", Bytes: 3000, Packets: 30, Drops: 2, LimitPackets: 10240,
						App: []netns.AppStat{{Name: "drop_overlimit", Value: 2}, {Name: "ecn_mark", Value: 4}}},
					{Device: "veth1a2b", Kind: "tbf", Parent: "root", Bytes: 2000, Packets: 20, Drops: 7, Requeues: 1, Overlimits: 9,
						Waiting: 3, Backlog: 12500, Rate: 1250000, Burst: 32768, LimitBytes: 64018},
				},
				Undecoded: 1,
				Offloads: []netns.Offloads{netns.FixtureOffloads("eth0", map[string]bool{
					"rx-checksum": true, "rx-gro": true, "tx-checksum-ip-generic": false, "tx-checksum-ipv4": true,
					"tx-generic-segmentation": true, "tx-tcp-segmentation": false,
				})},
				Hardware: []netns.Hardware{{
					Device: "eth0", Driver: "ena", Duplex: "Full", Autoneg: "On",
					Rings:    &ethtool.Ring{RxMaxPending: 8192, TxMaxPending: 1024, RxPending: 1024, TxPending: 1024},
					Channels: &ethtool.Channels{MaxCombined: 8, CombinedCount: 2},
					Stats: map[string]uint64{
						"bw_in_allowance_exceeded": 3, "conntrack_allowance_available": 99, "rx_missed_errors": 5, "queue_0_tx_cnt": 8,
						"rx\xff_drops": 1, "rx\xfe_drops": 2,
					},
				}},
				Links: []netns.Link{
					counted(lo, 25),
					counted(netns.Link{
						Index: 2, Name: "eth0", Kind: netns.KindPhysical, Address: "52:54:00:12:34:56", Up: true, Carrier: true, HasCarrier: true,
						MTU: 1500, PeerNSID: -1, CarrierChanges: 2, ReceiveQueues: 2, TransmitQueues: 2, SpeedMegabits: 10000,
					}, 25),
					counted(netns.Link{
						Index: 3, Name: "docker0", Kind: "bridge", Address: "02:42:00:00:00:01", Up: true, Carrier: true, HasCarrier: true,
						MTU: 1500, PeerNSID: -1, ReceiveQueues: 1, TransmitQueues: 1,
					}, 25),
					counted(netns.Link{
						Index: 9, Name: "veth1a2b", Kind: "veth", Address: "8a:00:00:00:00:09", Up: true, HasCarrier: true,
						MTU: 1450, Master: 3, Peer: 2, PeerNSID: 0, CarrierChanges: 5, ReceiveQueues: 1, TransmitQueues: 1,
					}, 25),
					counted(netns.Link{ // a name that was no UTF-8; its master is in no list
						Index: 12, Name: "a\uFFFD:12", Kind: "veth", MTU: 1500, Master: 77, PeerNSID: -1, ReceiveQueues: 1, TransmitQueues: 1,
					}, 25),
					counted(netns.Link{
						Index: 13, Name: "flannel.1", Kind: "vxlan", Address: "0a:00:00:00:00:01", Up: true, Carrier: true, HasCarrier: true,
						MTU: 1500, PeerNSID: -1, ReceiveQueues: 1, TransmitQueues: 1,
						Tunnel: &netns.Tunnel{ID: 1, Port: 8472, Local: netip.MustParseAddr("198.18.0.1"), Lower: 2},
					}, 25),
				}},
			overlay: &netns.Overlay{
				Uplink: 2, Underlay: map[int32]netns.Underlay{13: {Index: 2}},
				Neighbors: []netns.Neighbor{{Index: 13, IP: netip.MustParseAddr("198.19.1.0"), Address: "0a:00:00:00:00:02"}},
				Addresses: map[netip.Addr]int32{netip.MustParseAddr("198.19.0.0"): 13},
			},
			// The second end of veth1a2b, which is in a container.
			others: []*netns.Seen{{
				Namespace: &netns.Namespace{Key: netns.Key{Dev: 4, Ino: 4026532301}, Name: "container:web"}, Cookie: 2,
				Links: []netns.Link{counted(netns.Link{
					Index: 2, Name: "eth0", Kind: "veth", Address: "02:42:ac:11:00:02", Up: true, Carrier: true, HasCarrier: true,
					MTU: 1500, Peer: 9, PeerNSID: 0,
				}, 25)},
				Peers: make([]netns.Peer, 1),
			}},
			peers: map[int]int{3: 0},
		},
		{
			name:      "kernel-5.4",
			namespace: &netns.Namespace{Key: netns.Key{Dev: 4, Ino: 4026532301}, Name: `container:we"b`},
			told: netns.Told{Links: []netns.Link{
				counted(lo, 24),
				counted(netns.Link{
					Index: 2, Name: "eth0", Kind: "veth", Address: "02:42:ac:11:00:02", Up: true, Carrier: true, HasCarrier: true,
					MTU: 1400, Peer: 9, PeerNSID: 0, CarrierChanges: 1, ReceiveQueues: 1, TransmitQueues: 1,
				}, 24),
			}},
		},
	}
}

// TestGoldens compares what each collector makes of each fixture with testdata/<case>/<collector>.golden. With -update it
// writes them; look at the difference before you commit it.
func TestGoldens(t *testing.T) {
	for _, f := range fixtures() {
		t.Run(f.name, func(t *testing.T) {
			all := All()
			for i, c := range all {
				t.Run(c.Name, func(t *testing.T) {
					file := filepath.Join("testdata", f.name, c.Name+".golden")
					got, err := exposition(t.Context(), f, all, i)
					if errors.Is(err, netns.ErrUnsupported) || err == nil && len(got) == 0 {
						// Nothing of its source is in the fixture, so nothing may be expected of it either.
						if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
							t.Errorf("no series, although there is %s", file)
						}
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					pedantic(t, got)
					if *update {
						if err := os.WriteFile(file, got, 0o644); err != nil {
							t.Fatal(err)
						}
						return
					}
					want, err := os.ReadFile(file)
					if err != nil {
						t.Fatalf("%v (go test ./collector -run Goldens -update makes it)", err)
					}
					if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
						t.Errorf("%s (-want +got)\n%s", file, diff)
					}
				})
			}
		})
	}
}

// exposition runs one collector for the node and the namespace of a fixture, and all namespaces together, which is that one.
func exposition(ctx context.Context, f fixture, all []*Collector, i int) ([]byte, error) {
	var tables [][]*metric.Def
	for _, c := range all {
		tables = append(tables, c.Metrics)
	}
	schema, err := metric.NewSchema(tables...)
	if err != nil {
		return nil, err
	}
	batch, snap := metric.NewBatch(schema), metric.NewSnapshot(schema)
	c, view := all[i], netns.Fixture(filepath.Join("testdata", f.name), f.namespace, f.told)
	seen := &netns.Seen{
		Namespace: f.namespace, Cookie: 1, Links: f.told.Links, Peers: make([]netns.Peer, len(f.told.Links)), Overlay: f.overlay,
	}
	for link, peer := range f.peers {
		seen.Peers[link] = netns.Peer{Seen: f.others[0], At: peer}
	}
	sink := batch.Sink(i, f.namespace.Name, noLimit)
	if c.Node != nil {
		err = errors.Join(err, c.Node(ctx, view, &sink))
	}
	if c.Netns != nil {
		err = errors.Join(err, c.Netns(ctx, view, &sink))
	}
	if c.Join != nil {
		err = errors.Join(err, c.Join(ctx, &Whole{Seen: append([]*netns.Seen{seen}, f.others...), Complete: true}, &sink))
	}
	snap.Add(batch)
	return snap.AppendText(nil), errors.Join(err, sink.Err())
}

// pedantic is what client_golang's pedantic registry holds: a text that reads back whole, no series twice, and the same
// labels on all series of a family.
func pedantic(t *testing.T, text []byte) {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	series := 0
	for name, family := range families {
		seen, labels := map[string]bool{}, ""
		for i, m := range family.Metric {
			key, names := "", ""
			for _, l := range m.Label {
				key += fmt.Sprintf("%s=%q,", l.GetName(), l.GetValue())
				names += l.GetName() + ","
			}
			if seen[key] {
				t.Errorf("%s{%s} is there twice", name, key)
			}
			seen[key] = true
			if i > 0 && names != labels {
				t.Errorf("%s has series with the labels %s and with %s", name, labels, names)
			}
			labels = names
			series++
		}
	}
	lines := slices.DeleteFunc(strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"), func(l string) bool { return strings.HasPrefix(l, "#") })
	if len(lines) != series {
		t.Errorf("%d lines with series, %d read back", len(lines), series)
	}
}
