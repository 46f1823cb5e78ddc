package collector

import (
	"context"
	"strconv"

	"github.com/vethexporter/vethexporter/internal/metric"
	"github.com/vethexporter/vethexporter/internal/netns"
)

var (
	overlayInfo = &metric.Def{
		Name: "veth_overlay_info", Type: metric.Gauge,
		Labels: []string{metric.NetnsLabel, "device", "kind", "id", "remote", "port", "underlay", "learning", "udp_checksum"},
		Source: "RTM_GETLINK: IFLA_INFO_DATA; RTM_GETROUTE",
		Help: "1 for each tunnel that is up, with its ID (VNI or key), its one peer, UDP port, the device that its packets leave " +
			"through, whether it learns addresses, and whether it sends outer UDP checksums.",
		Meaning: "Compare the two ends of a tunnel. Without outer checksums receivers may not merge packets.",
	}
	overlayOverhead = overlayGauge("overhead_bytes", "RTM_GETLINK: IFLA_INFO_KIND",
		"What the tunnel adds to each packet, without Geneve's options. WireGuard's endpoints are taken to be IPv4.", "What the tunnel's MTU must be below that of its underlay.")
	overlayHeadroom = overlayGauge("mtu_headroom_bytes", "RTM_GETLINK: IFLA_MTU; RTM_GETROUTE",
		"MTU of the underlay less overhead and MTU of the tunnel, through all tunnels below.",
		"Below 0: full packets do not fit once encapsulated. Small ones pass, large ones hang or are fragmented.")
	overlayPermanent = overlayGauge("permanent_neighbors", "RTM_GETNEIGH: NUD_PERMANENT",
		"Permanent entries of the tunnel's neighbour table.", "An overlay's control plane writes one for each node.")
	overlayStale = overlayGauge("stale_neighbors", "RTM_GETNEIGH: NDA_LLADDR; RTM_GETADDR",
		"Permanent entries for an address of a tunnel on this node, with another hardware address than that tunnel has.",
		"Above 0: frames go to nobody. The receiver counts them in veth_device_receive_otherhost_dropped_total only.")
	podHeadroom = overlayGauge("pod_headroom_bytes", "RTM_GETLINK: IFLA_MTU of the pair, its bridge's tunnels and the uplink",
		"MTU of the device that a container's packets leave through, the tunnel with the least and the uplink, less the MTU of the container's end.",
		"Below 0: the container sends larger packets than its way out takes, and depends on path MTU discovery.", "through")
	bridgeSpread = &metric.Def{
		Name: "veth_bridge_mtu_spread_bytes", Type: metric.Gauge, Labels: deviceLabels, Source: "RTM_GETLINK: IFLA_MTU, IFLA_MASTER",
		Help:    "Difference between the largest and the smallest MTU of a bridge and its ports.",
		Meaning: "Above 0: a bridge drops what does not fit a port, and tells nobody.",
	}
	bridgeDuplicates = &metric.Def{
		Name: "veth_bridge_duplicate_address_devices", Type: metric.Gauge, Labels: deviceLabels,
		Source:  "RTM_GETLINK: IFLA_ADDRESS of the containers' ends",
		Help:    "Devices behind a bridge's ports that share their hardware address with another.",
		Meaning: "Above 0: the bridge sends one container's packets to another, which forwards or drops them.",
	}
)

func overlayGauge(name, source, help, meaning string, labels ...string) *metric.Def {
	return &metric.Def{
		Name: "veth_overlay_" + name, Type: metric.Gauge, Labels: append([]string{metric.NetnsLabel, "device"}, labels...),
		Source: source, Help: help, Meaning: meaning,
	}
}

// newOverlay returns the collector that audits MTU and addresses of tunnels, bridges and what is behind them.
func newOverlay() *Collector {
	return &Collector{
		Name: "overlay", Default: true, Join: joinOverlay,
		Metrics: []*metric.Def{
			overlayInfo, overlayOverhead, overlayHeadroom, overlayPermanent, overlayStale, podHeadroom, bridgeSpread, bridgeDuplicates,
		},
	}
}

func joinOverlay(_ context.Context, whole *Whole, sink *metric.Sink) error {
	peers := whole.peersOf()
	owners := tunnelOwners(whole.Seen)
	for _, s := range whole.Seen {
		sink.For(s.Namespace.Name)
		for i := range s.Links {
			l := &s.Links[i]
			if l.Tunnel != nil && l.Up && s.Overlay != nil {
				emitTunnel(sink, s, l, owners)
			}
			if l.Kind == kindBridge {
				emitBridge(sink, s, l, peers)
			}
			end := linkRef{s, i}
			if peer, ok := peers[end]; ok && l.Kind == kindVeth && isContainerEnd(end, peer) && peer.seen.Overlay != nil {
				emitPod(sink, l, peer)
			}
		}
	}
	return nil
}

const (
	kindBridge = "bridge"

	ipv4Header, ipv6Header = 20, 40
	udpHeader              = 8
	etherHeader            = 14
)

// innerOverhead is what each kind adds without the outer IP header. What carries frames carries their header too.
var innerOverhead = map[string]int{
	"vxlan": udpHeader + 8 + etherHeader, "geneve": udpHeader + 8 + etherHeader,
	"gre": 4, "ip6gre": 4, "gretap": 4 + etherHeader, "ip6gretap": 4 + etherHeader,
	"ipip": 0, "sit": 0, "ip6tnl": 0,
	"wireguard": udpHeader + 32,
}

// overhead returns what the tunnel adds to each packet.
func overhead(l *netns.Link, ipv6 bool) int {
	if l.Kind == "macsec" {
		return 32 // a tag with its channel, and the check value; no IP header
	}
	sum := innerOverhead[l.Kind] + ipv4Header
	if ipv6 || l.Kind == "ip6gre" || l.Kind == "ip6gretap" || l.Kind == "ip6tnl" {
		sum += ipv6Header - ipv4Header
	}
	return sum + l.Tunnel.Options
}

// maxStack bounds the tunnels in tunnels that are followed.
const maxStack = 8

// fits returns the largest packet that device l of s takes and that also fits whatever is below it.
func fits(s *netns.Seen, l *netns.Link, depth int) int {
	mtu := int(l.MTU)
	if room, ok := room(s, l, depth); ok {
		mtu = min(mtu, room)
	}
	return mtu
}

// room returns the largest packet of tunnel l that fits its underlay once encapsulated.
func room(s *netns.Seen, l *netns.Link, depth int) (int, bool) {
	if l.Tunnel == nil || s.Overlay == nil || depth == maxStack {
		return 0, false
	}
	under, ok := s.Overlay.Underlay[l.Index]
	if !ok {
		return 0, false
	}
	in, device := underlayOf(s, under)
	if device == nil {
		return 0, false
	}
	return fits(in, device, depth+1) - overhead(l, under.IPv6), true
}

// underlayOf returns the device that an underlay is, and its namespace; nil if it is not known.
func underlayOf(s *netns.Seen, under netns.Underlay) (in *netns.Seen, device *netns.Link) {
	if in = s; under.Seen != nil {
		in = under.Seen
	}
	at, ok := netns.FindLink(in.Links, under.Index)
	if !ok {
		return in, nil
	}
	return in, &in.Links[at]
}

func emitTunnel(sink *metric.Sink, s *netns.Seen, l *netns.Link, owners map[string]string) {
	under, name := s.Overlay.Underlay[l.Index], ""
	if _, device := underlayOf(s, under); device != nil {
		name = device.Name
	}
	remote := ""
	if l.Tunnel.Remote.IsValid() {
		remote = l.Tunnel.Remote.String()
	}
	sink.Emit(overlayInfo, 1, l.Name, l.Kind, strconv.FormatUint(uint64(l.Tunnel.ID), 10), remote, strconv.Itoa(int(l.Tunnel.Port)), name,
		strconv.FormatBool(l.Tunnel.Learning), strconv.FormatBool(l.Tunnel.UDPChecksum))
	sink.Emit(overlayOverhead, float64(overhead(l, under.IPv6)), l.Name)
	if room, ok := room(s, l, 0); ok {
		sink.Emit(overlayHeadroom, float64(room-int(l.MTU)), l.Name)
	}
	permanent, stale := 0, 0
	for _, n := range s.Overlay.Neighbors {
		if n.Index != l.Index {
			continue
		}
		permanent++
		if owner, ok := owners[ownerKey(l, n.IP.String())]; ok && owner != n.Address {
			stale++
		}
	}
	sink.Emit(overlayPermanent, float64(permanent), l.Name)
	sink.Emit(overlayStale, float64(stale), l.Name)
}

// tunnelOwners returns the hardware address of the tunnel that has each overlay's address, of all that were seen. An address
// that two of them have says nothing.
func tunnelOwners(all []*netns.Seen) map[string]string {
	owners, twice := map[string]string{}, map[string]bool{}
	for _, s := range all {
		if s.Overlay == nil {
			continue
		}
		for ip, index := range s.Overlay.Addresses {
			if at, ok := netns.FindLink(s.Links, index); ok {
				key := ownerKey(&s.Links[at], ip.String())
				_, known := owners[key]
				twice[key] = twice[key] || known
				owners[key] = s.Links[at].Address
			}
		}
	}
	for key, doubt := range twice {
		if doubt {
			delete(owners, key)
		}
	}
	return owners
}

// ownerKey is an address in one overlay.
func ownerKey(l *netns.Link, ip string) string {
	return l.Kind + " " + strconv.FormatUint(uint64(l.Tunnel.ID), 10) + " " + ip
}

func emitBridge(sink *metric.Sink, s *netns.Seen, bridge *netns.Link, peers map[linkRef]linkRef) {
	least, most := bridge.MTU, bridge.MTU
	behind := map[string]int{}
	for i := range s.Links {
		if s.Links[i].Master != bridge.Index {
			continue
		}
		least, most = min(least, s.Links[i].MTU), max(most, s.Links[i].MTU)
		if peer, ok := peers[linkRef{s, i}]; ok && s.Links[i].Kind == kindVeth {
			behind[peer.link().Address]++
		}
	}
	duplicates := 0
	for _, n := range behind {
		if n > 1 {
			duplicates += n
		}
	}
	sink.Emit(bridgeSpread, float64(most-least), bridge.Name)
	sink.Emit(bridgeDuplicates, float64(duplicates), bridge.Name)
}

// emitPod compares a container's end with its ways out of the host's namespace: of the tunnels the one with the least room,
// among the ports of its bridge if there are any, else among all; and the uplink.
func emitPod(sink *metric.Sink, end *netns.Link, host linkRef) {
	s := host.seen
	var bridged, routed *netns.Link
	narrower := func(best, l *netns.Link) *netns.Link {
		if best == nil || fits(s, l, 0) < fits(s, best, 0) {
			return l
		}
		return best
	}
	for i := range s.Links {
		l := &s.Links[i]
		switch {
		case l.Tunnel == nil || !l.Up:
		case l.Master != 0 && l.Master == host.link().Master:
			bridged = narrower(bridged, l)
		case l.Master == 0:
			routed = narrower(routed, l)
		}
	}
	if bridged == nil {
		bridged = routed
	}
	if bridged != nil {
		sink.Emit(podHeadroom, float64(fits(s, bridged, 0)-int(end.MTU)), end.Name, bridged.Name)
	}
	if at, ok := netns.FindLink(s.Links, s.Overlay.Uplink); ok && &s.Links[at] != bridged {
		sink.Emit(podHeadroom, float64(fits(s, &s.Links[at], 0)-int(end.MTU)), end.Name, s.Links[at].Name)
	}
}
