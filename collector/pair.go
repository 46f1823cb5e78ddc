package collector

import (
	"cmp"
	"context"

	"github.com/vethexporter/vethexporter/internal/metric"
	"github.com/vethexporter/vethexporter/internal/netns"
)

var (
	pairInfo = &metric.Def{
		Name: "veth_pair_info", Type: metric.Gauge,
		Labels: []string{metric.NetnsLabel, "device", "peer_netns", "peer_device", "bridge"},
		Source: "RTM_GETLINK: IFLA_LINK, IFLA_LINK_NETNSID, IFLA_MASTER; RTM_GETNSID",
		Help:   "1 for each veth pair: the container's end, the host's end as its peer, and the bridge that the host's end is a port of.",
		Meaning: "Join it by netns and device to learn a container's device on the host, " +
			"or by peer_netns and peer_device for the way back.",
	}
	pairUp = &metric.Def{
		Name: "veth_pair_up", Type: metric.Gauge, Labels: deviceLabels, Source: "RTM_GETLINK: IFF_UP, IFLA_CARRIER of both ends",
		Help:    "1 if both ends of the pair are up with a carrier.",
		Meaning: "0: nothing passes; the end that is down is the one whose veth_device_up is 0.",
	}
	pairDropped = &metric.Def{
		Name: "veth_pair_dropped_total", Type: metric.Counter, Labels: []string{metric.NetnsLabel, "device", "direction"},
		Source: "rtnl_link_stats64: tx_dropped of the end that sends",
		Help: "Packets lost between the two ends of a pair, each counted once, by direction as the container sees it: " +
			"receive towards it, transmit from it.",
		Meaning: "Loss inside the node: the receiving end is down, its queue or its CPU's backlog is full.",
	}
	pairMTUDifference = &metric.Def{
		Name: "veth_pair_mtu_difference_bytes", Type: metric.Gauge, Labels: deviceLabels, Source: "RTM_GETLINK: IFLA_MTU of both ends",
		Help:    "MTU of the container's end less that of the host's end.",
		Meaning: "Not 0: large packets of the end with the larger MTU are dropped by the pair.",
	}
	pairOrphans = &metric.Def{
		Name: "veth_pair_orphan_devices", Type: metric.Gauge, Labels: []string{metric.NetnsLabel}, Source: "RTM_GETLINK: IFLA_LINK_NETNSID",
		Help:    "veth devices of this namespace whose other end is in no namespace that was found.",
		Meaning: "Something holds a namespace by a descriptor only, or mounts it where it is not looked for: a leak.",
	}
	bridgePorts = &metric.Def{
		Name: "veth_bridge_ports", Type: metric.Gauge, Labels: deviceLabels, Source: "RTM_GETLINK: IFLA_MASTER",
		Help:    "Devices that are ports of this bridge.",
		Meaning: "A bridge takes 1,023; near that, new containers fail to start.",
	}
	childInfo = &metric.Def{
		Name: "veth_child_info", Type: metric.Gauge,
		Labels:  []string{metric.NetnsLabel, "device", "kind", "mode", "parent_netns", "parent_device"},
		Source:  "RTM_GETLINK: IFLA_LINK, IFLA_MACVLAN_MODE, IFLA_IPVLAN_MODE",
		Help:    "1 for each macvlan or ipvlan device, with its mode and the device that it is a child of.",
		Meaning: "A child cannot reach its parent's address, by design; nor do the host's netfilter rules see its traffic.",
	}
)

// newPair returns the collector of what belongs together: the ends of veth pairs, bridges and their ports, children and
// their parents.
func newPair() *Collector {
	return &Collector{
		Name: "pair", Default: true, Join: joinPairs,
		Metrics: []*metric.Def{pairInfo, pairUp, pairDropped, pairMTUDifference, pairOrphans, bridgePorts, childInfo},
	}
}

// linkRef is one device of one namespace.
type linkRef struct {
	seen *netns.Seen
	at   int
}

func (r linkRef) link() *netns.Link { return &r.seen.Links[r.at] }

// master returns the name of the bridge or bond that the device is a port of, or "".
func (r linkRef) master() string { return masterName(r.seen.Links, r.link().Master) }

// peersOf returns every device's peer, worked out once. Of the two ends of a pair, one knew the other.
func (w *Whole) peersOf() map[linkRef]linkRef {
	if w.peers != nil {
		return w.peers
	}
	w.peers = map[linkRef]linkRef{}
	for _, s := range w.Seen {
		for i, p := range s.Peers {
			if p.Seen == nil {
				continue
			}
			w.peers[linkRef{s, i}] = linkRef{p.Seen, p.At}
			if s.Links[i].Kind == kindVeth {
				w.peers[linkRef{p.Seen, p.At}] = linkRef{s, i}
			}
		}
	}
	return w.peers
}

const kindVeth = "veth"

func joinPairs(_ context.Context, whole *Whole, sink *metric.Sink) error {
	peers := whole.peersOf()
	for _, s := range whole.Seen {
		sink.For(s.Namespace.Name)
		orphans, ports := 0, map[int32]int{}
		for i := range s.Links {
			end := linkRef{s, i}
			l := end.link()
			ports[l.Master]++
			peer, known := peers[end]
			switch {
			case l.Kind != kindVeth:
				if known && l.Mode != "" {
					sink.Emit(childInfo, 1, l.Name, l.Kind, l.Mode, peer.seen.Namespace.Name, peer.link().Name)
				}
			case !known:
				orphans++
			case isContainerEnd(end, peer):
				emitPair(sink, end, peer)
			}
		}
		for i := range s.Links {
			if l := &s.Links[i]; l.Kind == "bridge" {
				sink.Emit(bridgePorts, float64(ports[l.Index]), l.Name)
			}
		}
		if whole.Complete {
			sink.Emit(pairOrphans, float64(orphans))
		}
	}
	return nil
}

func emitPair(sink *metric.Sink, end, peer linkRef) {
	l, p := end.link(), peer.link()
	sink.Emit(pairInfo, 1, l.Name, peer.seen.Namespace.Name, p.Name, peer.master())
	sink.Emit(pairUp, truth(l.Up && p.Up && l.Carrier && p.Carrier), l.Name)
	// A packet lost between the ends is counted by the sender's tx_dropped, and once more by the receiver's rx_dropped if it
	// got as far as a CPU's backlog. rx_dropped alone also counts packets that nobody wanted.
	sink.Emit(pairDropped, float64(p.Counters[netns.TransmitDropped]), l.Name, "receive")
	sink.Emit(pairDropped, float64(l.Counters[netns.TransmitDropped]), l.Name, "transmit")
	sink.Emit(pairMTUDifference, float64(l.MTU)-float64(p.MTU), l.Name)
}

// isContainerEnd tells which of two ends is the container's: the one outside the host's namespace; else the one that is no
// port of a bridge; else, as for two equal namespaces, the later one.
func isContainerEnd(end, peer linkRef) bool {
	return cmp.Or(
		compareTruth(peer.seen.Namespace.Host, end.seen.Namespace.Host),
		compareTruth(peer.link().Master != 0, end.link().Master != 0),
		cmp.Compare(end.seen.Namespace.Name, peer.seen.Namespace.Name),
		cmp.Compare(end.at, peer.at),
	) > 0
}

func compareTruth(a, b bool) int { return cmp.Compare(truth(a), truth(b)) }
