package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Tunnel is what a device that encapsulates is set to. What its kind does not have is zero.
type Tunnel struct {
	ID          uint32     // VNI or key
	Remote      netip.Addr // the one peer, or a multicast group
	Local       netip.Addr
	Lower       int32 // index of the device that it is bound to
	Port        uint16
	Learning    bool
	UDPChecksum bool // sends outer UDP checksums
	External    bool // the routing decides on peer and ID for each packet
	Options     int  // bytes of optional headers: GRE's key, checksum and sequence; IPv6's limit of encapsulations
}

// tunnelKinds decode IFLA_INFO_DATA of the kinds of tunnels that are known.
var tunnelKinds = map[string]func(t *Tunnel, data []byte){
	"vxlan": func(t *Tunnel, data []byte) {
		each(data, func(typ uint16, b []byte) {
			switch typ { // enum of include/uapi/linux/if_link.h
			case 1:
				t.ID = word32(b)
			case 2, 16:
				t.Remote = addr(b)
			case 3:
				t.Lower = int32(word32(b))
			case 4, 17:
				t.Local = addr(b)
			case 7:
				t.Learning = flag(b)
			case 15:
				t.Port = port(b)
			case 18:
				t.UDPChecksum = flag(b)
			case 25:
				t.External = flag(b)
			}
		})
	},
	"geneve": func(t *Tunnel, data []byte) {
		each(data, func(typ uint16, b []byte) {
			switch typ {
			case 1:
				t.ID = word32(b)
			case 2, 7:
				t.Remote = addr(b)
			case 5:
				t.Port = port(b)
			case 6:
				t.External = true
			case 8:
				t.UDPChecksum = flag(b)
			}
		})
	},
	"gre": decodeGRE, "gretap": decodeGRE, "ip6gre": decodeGRE, "ip6gretap": decodeGRE,
	"ipip": decodeIPTunnel, "sit": decodeIPTunnel,
	"ip6tnl": func(t *Tunnel, data []byte) {
		decodeIPTunnel(t, data)
		t.Options += encapsulationLimit(attribute(data, 8)) // IFLA_IPTUN_FLAGS
	},
	"wireguard": func(*Tunnel, []byte) {},
	"macsec":    func(*Tunnel, []byte) {},
}

func decodeGRE(t *Tunnel, data []byte) {
	each(data, func(typ uint16, b []byte) {
		switch typ { // enum of include/uapi/linux/if_tunnel.h
		case 1:
			t.Lower = int32(word32(b))
		case 3:
			if len(b) >= 2 { // GRE_CSUM, GRE_KEY and GRE_SEQ, in network order
				t.Options += 4 * bits.OnesCount8(b[0]&(0x80|0x20|0x10))
			}
		case 5:
			if len(b) >= 4 {
				t.ID = binary.BigEndian.Uint32(b)
			}
		case 6:
			t.Local = addr(b)
		case 7:
			t.Remote = addr(b)
		case 18:
			t.External = true
		case 13:
			t.Options += encapsulationLimit(b)
		}
	})
}

// encapsulationLimit returns the bytes that the flags of an IPv6 tunnel make it add, unless it ignores the limit
// (IP6_TNL_F_IGN_ENCAP_LIMIT).
func encapsulationLimit(flags []byte) int {
	if word32(flags)&1 != 0 {
		return 0
	}
	return 8
}

func decodeIPTunnel(t *Tunnel, data []byte) {
	each(data, func(typ uint16, b []byte) {
		switch typ {
		case 1:
			t.Lower = int32(word32(b))
		case 2:
			t.Local = addr(b)
		case 3:
			t.Remote = addr(b)
		}
	})
}

func word32(b []byte) uint32 { return uint32(firstWord(b)) }

func flag(b []byte) bool { return len(b) > 0 && b[0] != 0 }

func port(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

// addr reads an address; one that is all zero means none.
func addr(b []byte) netip.Addr {
	a, ok := netip.AddrFromSlice(b)
	if !ok || a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}

// Neighbor is one permanent entry of a tunnel's neighbour table.
type Neighbor struct {
	Index   int32 // of the tunnel
	IP      netip.Addr
	Address string // hardware address
}

// Underlay is where a tunnel's packets leave.
type Underlay struct {
	Seen  *Seen // the namespace of the device; nil for the tunnel's own
	Index int32 // of the device
	IPv6  bool  // the outer packets' family
}

// Overlay is what is known of a namespace's tunnels and where its traffic leaves.
type Overlay struct {
	Underlay  map[int32]Underlay // by the index of the tunnel; absent if unknown
	Uplink    int32              // index of the device of the default route; 0 if there is none
	Neighbors []Neighbor
	Addresses map[netip.Addr]int32 // the tunnels' own addresses, to the tunnel's index
}

// anywhere is an address that only a default route leads to: no network has it (RFC 5737).
var anywhere = netip.AddrFrom4([4]byte{192, 0, 2, 1})

// readOverlay finds the underlay of each tunnel among links: the device that it is bound to, else that of the route to its
// peer, else that of the route to a peer in its forwarding table, else that of the default route. madeIn returns the
// namespace that a tunnel was made in, if that is another one and was visited before.
func (v *Visitor) readOverlay(c *conn, links []Link, madeIn func(*Link) *Seen) (*Overlay, error) {
	o := &Overlay{Underlay: map[int32]Underlay{}, Addresses: map[netip.Addr]int32{}}
	uplink, err := routeDevice(c, anywhere)
	if err != nil {
		return nil, err
	}
	o.Uplink = uplink
	tunnels := map[int32]bool{}
	var peers map[int32]netip.Addr // from the forwarding tables; nil until they are wanted
	for i := range links {
		l := &links[i]
		if l.Tunnel == nil {
			continue
		}
		tunnels[l.Index] = true
		if l.Kind == "vxlan" && !l.Tunnel.Remote.IsValid() && peers == nil {
			if peers, err = v.forwardingPeers(); err != nil {
				return nil, err
			}
		}
		if l.PeerNSID >= 0 && l.Kind != "macsec" {
			// It was made in another namespace, and its packets still leave there. Routes cannot be asked for from here.
			if made := madeIn(l); made != nil && made.Overlay != nil {
				under := Underlay{Seen: made, Index: l.Tunnel.Lower, IPv6: outerIPv6(l, peers[l.Index])}
				if under.Index == 0 {
					under.Index = made.Overlay.Uplink
				}
				if under.Index != 0 {
					o.Underlay[l.Index] = under
				}
			}
			continue
		}
		under, err := underlay(c, l, peers[l.Index], uplink)
		if err != nil {
			return nil, err
		}
		if under.Index != 0 && under.Index != l.Index {
			o.Underlay[l.Index] = under
		}
	}
	if len(tunnels) == 0 {
		return o, nil
	}
	if err := v.readNeighbors(o, tunnels); err != nil {
		return nil, err
	}
	return o, o.readAddresses(c, tunnels)
}

// outerIPv6 tells the family of a tunnel's outer packets.
func outerIPv6(l *Link, learned netip.Addr) bool {
	for _, known := range []netip.Addr{l.Tunnel.Remote, learned, l.Tunnel.Local} {
		if known.IsValid() {
			return known.Is6()
		}
	}
	return false
}

func underlay(c *conn, l *Link, learned netip.Addr, uplink int32) (u Underlay, err error) {
	if l.Kind == "macsec" {
		return Underlay{Index: l.Peer}, nil
	}
	peer := l.Tunnel.Remote
	if !peer.IsValid() {
		peer = learned
	}
	u.IPv6 = outerIPv6(l, learned)
	switch {
	case l.Tunnel.Lower != 0:
		u.Index = l.Tunnel.Lower
	case peer.IsValid() && !peer.IsMulticast():
		u.Index, err = routeDevice(c, peer)
	default:
		u.Index = uplink
	}
	return u, err
}

// routeDevice returns the device that the route to an address leads through, 0 if there is no route.
func routeDevice(c *conn, to netip.Addr) (device int32, err error) {
	data := make([]byte, unix.SizeofRtMsg)
	data[0], data[1] = unix.AF_INET, uint8(to.BitLen())
	if to.Is6() {
		data[0] = unix.AF_INET6
	}
	b := to.AsSlice()
	data = binary.NativeEndian.AppendUint16(data, uint16(unix.SizeofNlAttr+len(b)))
	data = binary.NativeEndian.AppendUint16(data, unix.RTA_DST)
	data = append(data, b...)
	err = c.request(netlink.Message{Header: netlink.Header{Type: unix.RTM_GETROUTE}, Data: data}, func(typ uint16, data []byte) bool {
		if typ == unix.RTM_NEWROUTE && len(data) >= unix.SizeofRtMsg {
			device = int32(word32(attribute(data[unix.SizeofRtMsg:], unix.RTA_OIF)))
		}
		return true
	})
	for _, none := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINVAL, unix.EACCES, unix.EAFNOSUPPORT} {
		if errors.Is(err, none) {
			return 0, nil
		}
	}
	if err != nil {
		return 0, fmt.Errorf("route to %v: %w", to, err)
	}
	return device, nil
}

const ndmsgSize = 12 // sizeof(struct ndmsg)

// maxNeighbors bounds the entries that are looked at in the tables of one namespace. Anybody in it may have made more.
const maxNeighbors = 1 << 16

// dumpNeighbors reads the neighbour tables or, for AF_BRIDGE, the forwarding tables, up to the bound. It does so on a socket
// of its own, as it may leave the rest of the answer in it.
func (v *Visitor) dumpNeighbors(family uint8, found func(index int32, state uint16, attrs []byte)) error {
	c, err := dial(unix.NETLINK_ROUTE, 0, v.buf)
	if err != nil {
		return err
	}
	defer c.close()
	data := make([]byte, ndmsgSize)
	data[0] = family
	count := 0
	err = c.request(netlink.Message{Header: netlink.Header{Type: unix.RTM_GETNEIGH, Flags: netlink.Dump}, Data: data}, func(typ uint16, data []byte) bool {
		if typ == unix.RTM_NEWNEIGH && len(data) >= ndmsgSize {
			found(int32(word32(data[4:])), binary.NativeEndian.Uint16(data[8:]), data[ndmsgSize:])
		}
		count++
		return count < maxNeighbors
	})
	if errors.Is(err, errInterrupted) {
		return nil
	}
	return err
}

// forwardingPeers returns a peer of each vxlan device from the forwarding tables.
func (v *Visitor) forwardingPeers() (map[int32]netip.Addr, error) {
	peers := map[int32]netip.Addr{}
	err := v.dumpNeighbors(unix.AF_BRIDGE, func(index int32, _ uint16, attrs []byte) {
		if _, ok := peers[index]; ok {
			return
		}
		if to := addr(attribute(attrs, unix.NDA_DST)); to.IsValid() && !to.IsMulticast() {
			peers[index] = to
		}
	})
	if err != nil {
		return nil, fmt.Errorf("forwarding tables: %w", err)
	}
	return peers, nil
}

// readNeighbors keeps the permanent entries of tunnels.
func (v *Visitor) readNeighbors(o *Overlay, tunnels map[int32]bool) error {
	err := v.dumpNeighbors(unix.AF_UNSPEC, func(index int32, state uint16, attrs []byte) {
		if !tunnels[index] || state&unix.NUD_PERMANENT == 0 {
			return
		}
		ip, hardware := addr(attribute(attrs, unix.NDA_DST)), net.HardwareAddr(attribute(attrs, unix.NDA_LLADDR))
		if ip.IsValid() && !ip.IsMulticast() && len(hardware) > 0 {
			o.Neighbors = append(o.Neighbors, Neighbor{Index: index, IP: ip, Address: hardware.String()})
		}
	})
	if err != nil {
		return fmt.Errorf("neighbours: %w", err)
	}
	return nil
}

func (o *Overlay) readAddresses(c *conn, tunnels map[int32]bool) error {
	request := netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETADDR, Flags: netlink.Dump},
		Data:   make([]byte, unix.SizeofIfAddrmsg),
	}
	err := c.request(request, func(typ uint16, data []byte) bool {
		if typ != unix.RTM_NEWADDR || len(data) < unix.SizeofIfAddrmsg {
			return true
		}
		index, attrs := int32(word32(data[4:])), data[unix.SizeofIfAddrmsg:]
		ip := addr(attribute(attrs, unix.IFA_LOCAL))
		if !ip.IsValid() {
			ip = addr(attribute(attrs, unix.IFA_ADDRESS)) // IPv6 has this one only
		}
		if ip.IsValid() && tunnels[index] {
			o.Addresses[ip] = index
		}
		return true
	})
	if err != nil && !errors.Is(err, errInterrupted) {
		return fmt.Errorf("addresses: %w", err)
	}
	return nil
}
