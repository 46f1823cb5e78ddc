package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The counters of a device, in the order of struct rtnl_link_stats64 (include/uapi/linux/if_link.h).
const (
	ReceivePackets = iota
	TransmitPackets
	ReceiveBytes
	TransmitBytes
	ReceiveErrors
	TransmitErrors
	ReceiveDropped
	TransmitDropped
	Multicast
	Collisions
	ReceiveLengthErrors
	ReceiveOverErrors
	ReceiveCRCErrors
	ReceiveFrameErrors
	ReceiveFIFOErrors
	ReceiveMissedErrors
	TransmitAbortedErrors
	TransmitCarrierErrors
	TransmitFIFOErrors
	TransmitHeartbeatErrors
	TransmitWindowErrors
	ReceiveCompressed
	TransmitCompressed
	ReceiveNoHandler
	ReceiveOtherhostDropped // Linux 5.19
	linkCounters
)

// Kinds of devices that the kernel gives no kind of its own.
const (
	KindLoopback = "loopback"
	KindPhysical = "physical"
)

// Link is one device of a namespace.
type Link struct {
	Index          int32
	Name           string // unique in its namespace, valid UTF-8
	Kind           string // as `ip -d link` prints it, else KindLoopback or KindPhysical
	Address        string // hardware address, "" if it has none
	Up             bool   // administratively
	Carrier        bool
	HasCarrier     bool // whether the kernel told Carrier
	MTU            uint32
	Master         int32 // index of the bridge or bond that it is a port of, 0 for none
	Peer           int32 // index of a veth's other end, or of the device below; 0 for none
	PeerNSID       int32 // the namespace of Peer as this namespace numbers it; -1 for this one
	CarrierChanges uint32
	Mode           string  // of a macvlan or ipvlan, as `ip -d link` prints it
	Tunnel         *Tunnel // what a tunnel is set to; nil for other devices
	ReceiveQueues  uint32  // allocated; fewer may be in use
	TransmitQueues uint32
	SpeedMegabits  int // of a physical device; 0 if unknown
	Counters       [linkCounters]uint64
	Counted        int // how many of Counters this kernel has
}

const (
	iflaStatsLink64    = 1       // IFLA_STATS_LINK_64
	statsMaskLink64    = 1       // IFLA_STATS_FILTER_BIT(IFLA_STATS_LINK_64)
	rtextSkipStats     = 1 << 3  // RTEXT_FILTER_SKIP_STATS
	rtmGetStats        = 94      // RTM_GETSTATS
	ifStatsMsgSize     = 12      // sizeof(struct if_stats_msg)
	nlaTypeMask        = 0x3fff  // NLA_TYPE_MASK
	eventBuffer        = 1 << 20 // bytes of link events that the kernel keeps between two scrapes
	maxInterruptedDump = 3
)

// dumpLinks reads all devices of the connection's namespace with their counters, at most limit (0 for no limit) of them.
// It tells whether there are more.
func dumpLinks(c *conn, into []Link, limit int) (links []Link, capped bool, err error) {
	for range maxInterruptedDump {
		links, capped = into[:0], false
		err = c.request(getLink(0), func(typ uint16, data []byte) bool {
			if limit > 0 && len(links) == limit {
				capped = true
				return false
			}
			var l Link
			if typ == unix.RTM_NEWLINK && l.decode(data) == nil {
				links = append(links, l)
			}
			return true
		})
		if capped || !errors.Is(err, errInterrupted) {
			break // a second dump is refused while the rest of the first is in the socket
		}
	}
	// An interrupted dump may show a device twice. What it shows of each is true.
	slices.SortFunc(links, func(a, b Link) int { return int(a.Index - b.Index) })
	links = slices.CompactFunc(links, func(a, b Link) bool { return a.Index == b.Index })
	if errors.Is(err, errInterrupted) {
		err = nil
	}
	return links, capped, err
}

func getLink(extMask uint32) netlink.Message {
	data := make([]byte, unix.SizeofIfInfomsg, unix.SizeofIfInfomsg+8)
	if extMask != 0 {
		data = binary.NativeEndian.AppendUint16(data, 8)
		data = binary.NativeEndian.AppendUint16(data, unix.IFLA_EXT_MASK)
		data = binary.NativeEndian.AppendUint32(data, extMask)
	}
	return netlink.Message{Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Dump}, Data: data}
}

// decode fills l from an RTM_NEWLINK message. Messages about a bridge port or a wireless event carry a part only: they give
// an error, as anything else that is not a whole description of a device.
func (l *Link) decode(data []byte) error {
	if len(data) < unix.SizeofIfInfomsg || data[0] != unix.AF_UNSPEC {
		return errors.New("not a link message")
	}
	hardware := binary.NativeEndian.Uint16(data[2:])
	flags := binary.NativeEndian.Uint32(data[8:])
	*l = Link{Index: int32(binary.NativeEndian.Uint32(data[4:])), Up: flags&unix.IFF_UP != 0, PeerNSID: -1}
	ad, err := netlink.NewAttributeDecoder(data[unix.SizeofIfInfomsg:])
	if err != nil {
		return fmt.Errorf("link message: %w", err)
	}
	whole := false
	for ad.Next() {
		switch ad.Type() {
		case unix.IFLA_IFNAME:
			l.Name = deviceName(ad.Bytes(), l.Index)
		case unix.IFLA_MTU:
			l.MTU, whole = ad.Uint32(), true
		case unix.IFLA_ADDRESS:
			if a := net.HardwareAddr(ad.Bytes()); len(a) > 0 {
				l.Address = a.String()
			}
		case unix.IFLA_CARRIER:
			l.Carrier, l.HasCarrier = ad.Uint8() != 0, true
		case unix.IFLA_CARRIER_CHANGES:
			l.CarrierChanges = ad.Uint32()
		case unix.IFLA_NUM_RX_QUEUES:
			l.ReceiveQueues = ad.Uint32()
		case unix.IFLA_NUM_TX_QUEUES:
			l.TransmitQueues = ad.Uint32()
		case unix.IFLA_MASTER:
			l.Master = ad.Int32()
		case unix.IFLA_LINK:
			l.Peer = ad.Int32()
		case unix.IFLA_LINK_NETNSID:
			l.PeerNSID = ad.Int32()
		case unix.IFLA_LINKINFO:
			ad.Nested(l.decodeInfo)
		case unix.IFLA_STATS64:
			l.count(ad.Bytes())
		}
	}
	if err := ad.Err(); err != nil {
		return fmt.Errorf("link message: %w", err)
	}
	if !whole || l.Name == "" {
		return errors.New("not a whole link message")
	}
	if _, ok := tunnelKinds[l.Kind]; ok && l.Tunnel == nil {
		l.Tunnel = &Tunnel{} // a kind without settings
	}
	if l.Kind == "" {
		l.Kind = KindPhysical
		if hardware == unix.ARPHRD_LOOPBACK {
			l.Kind = KindLoopback
		}
	}
	return nil
}

func (l *Link) decodeInfo(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case unix.IFLA_INFO_KIND:
			l.Kind = strings.ToValidUTF8(ad.String(), "\uFFFD")
		case unix.IFLA_INFO_DATA:
			// The kernel writes the kind first.
			if decode, ok := tunnelKinds[l.Kind]; ok {
				l.Tunnel = &Tunnel{}
				decode(l.Tunnel, ad.Bytes())
			}
			if modes, ok := linkModes[l.Kind]; ok {
				if mode := attribute(ad.Bytes(), linkModeAttribute); len(mode) >= 2 {
					l.Mode = modes[binary.NativeEndian.Uint16(mode)]
				}
			}
		}
	}
	return ad.Err()
}

// linkModeAttribute is IFLA_MACVLAN_MODE, IFLA_IPVLAN_MODE and their likes; a mode of 32 bits is small.
const linkModeAttribute = 1

var (
	macvlanModes = map[uint16]string{1: "private", 2: "vepa", 4: "bridge", 8: "passthru", 16: "source"}
	linkModes    = map[string]map[uint16]string{
		"macvlan": macvlanModes, "macvtap": macvlanModes,
		"ipvlan": {0: "l2", 1: "l3", 2: "l3s"}, "ipvtap": {0: "l2", 1: "l3", 2: "l3s"},
	}
)

// count fills the counters from a struct rtnl_link_stats64, which newer kernels make longer.
func (l *Link) count(b []byte) {
	l.Counted = min(len(b)/8, linkCounters)
	for i := range l.Counted {
		l.Counters[i] = binary.NativeEndian.Uint64(b[8*i:])
	}
}

// deviceName makes a device's name fit for a label. The kernel takes any bytes but slashes, colons and spaces, so two
// different names could become one; the colon and the index keep such names apart, and from all others.
func deviceName(b []byte, index int32) string {
	for len(b) > 0 && b[len(b)-1] == 0 {
		b = b[:len(b)-1]
	}
	if utf8.Valid(b) {
		return string(b)
	}
	return fmt.Sprintf("%s:%d", strings.ToValidUTF8(string(b), "\uFFFD"), index)
}

// linkTable follows the devices of the host's namespace. A dump of its links costs the kernel time quadratic in the number of
// namespaces at their other ends, so it is done once; changes come as events, and counters as a dump of their own.
type linkTable struct {
	requests *conn
	events   *conn
	links    map[int32]*Link
	stale    bool
	sorted   []Link
}

// newLinkTable opens its sockets in the namespace of this thread.
func newLinkTable(buf []byte) (*linkTable, error) {
	requests, err := dial(unix.NETLINK_ROUTE, 0, buf)
	if err != nil {
		return nil, err
	}
	events, err := dial(unix.NETLINK_ROUTE, 1<<(unix.RTNLGRP_LINK-1), buf)
	if err != nil {
		requests.close()
		return nil, err
	}
	// More than the default takes CAP_NET_ADMIN. With less, more events are lost, and each loss costs one more dump.
	_ = unix.SetsockoptInt(events.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, eventBuffer)
	return &linkTable{requests: requests, events: events, links: map[int32]*Link{}, stale: true}, nil
}

func (t *linkTable) close() {
	t.requests.close()
	t.events.close()
}

// read returns all devices with their present counters, ordered by index. The slice is valid until the next call.
func (t *linkTable) read() ([]Link, error) {
	// A device that came between the events and the counters is unknown to the first round.
	for range 2 {
		if err := t.update(); err != nil {
			return nil, err
		}
		unknown, err := t.count()
		if err != nil {
			return nil, err
		}
		if !unknown {
			break
		}
	}
	return t.sorted, nil
}

// update brings the devices up to date, from events if none was lost, else from a dump.
func (t *linkTable) update() error {
	for {
		datagram, err := t.events.receive(unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if errors.Is(err, unix.ENOBUFS) {
			t.stale = true
			continue
		}
		if err != nil {
			return fmt.Errorf("link events: %w", err)
		}
		if _, err := messages(datagram, func(h unix.NlMsghdr, data []byte) (bool, error) {
			t.apply(h.Type, data)
			return false, nil
		}); err != nil {
			return fmt.Errorf("link events: %w", err)
		}
	}
	if !t.stale {
		return nil
	}
	clear(t.links)
	err := t.requests.request(getLink(rtextSkipStats), func(typ uint16, data []byte) bool {
		t.apply(typ, data)
		return true
	})
	t.stale = err != nil
	if errors.Is(err, errInterrupted) {
		return nil // the change that interrupted it also is an event; the next read dumps again
	}
	if err != nil {
		return fmt.Errorf("dump links: %w", err)
	}
	return nil
}

// apply makes one change.
func (t *linkTable) apply(typ uint16, data []byte) {
	switch typ {
	case unix.RTM_NEWLINK:
		var l Link
		if l.decode(data) == nil {
			t.links[l.Index] = &l
		}
	case unix.RTM_DELLINK:
		if len(data) >= unix.SizeofIfInfomsg && data[0] == unix.AF_UNSPEC {
			delete(t.links, int32(binary.NativeEndian.Uint32(data[4:])))
		}
	}
}

// count reads the counters of all devices into sorted. It tells whether there was one that the table does not know.
func (t *linkTable) count() (unknown bool, err error) {
	request := netlink.Message{
		Header: netlink.Header{Type: rtmGetStats, Flags: netlink.Dump},
		Data:   binary.NativeEndian.AppendUint32(make([]byte, 8, ifStatsMsgSize), statsMaskLink64),
	}
	t.sorted = t.sorted[:0]
	err = t.requests.request(request, func(typ uint16, data []byte) bool {
		if typ != unix.RTM_NEWSTATS || len(data) < ifStatsMsgSize {
			return true
		}
		l, ok := t.links[int32(binary.NativeEndian.Uint32(data[4:]))]
		if !ok {
			unknown = true
			return true
		}
		if stats := attribute(data[ifStatsMsgSize:], iflaStatsLink64); stats != nil {
			l.count(stats)
			t.sorted = append(t.sorted, *l)
		}
		return true
	})
	if err != nil && !errors.Is(err, errInterrupted) {
		return false, fmt.Errorf("dump link counters: %w", err)
	}
	slices.SortFunc(t.sorted, func(a, b Link) int { return int(a.Index - b.Index) })
	t.sorted = slices.CompactFunc(t.sorted, func(a, b Link) bool { return a.Index == b.Index })
	return unknown, nil
}

// attribute returns the payload of the first attribute of that type, or nil.
func attribute(b []byte, typ uint16) (payload []byte) {
	each(b, func(t uint16, data []byte) {
		if t == typ && payload == nil {
			payload = data
		}
	})
	return payload
}

// each calls found with every attribute, up to one whose length is wrong.
func each(b []byte, found func(typ uint16, data []byte)) {
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			return
		}
		found(binary.NativeEndian.Uint16(b[2:])&nlaTypeMask, b[unix.SizeofNlAttr:size])
		b = b[min((size+3)&^3, len(b)):]
	}
}

// FindLink returns the place of a device in links, which are ordered by index.
func FindLink(links []Link, index int32) (int, bool) {
	return slices.BinarySearchFunc(links, index, func(l Link, i int32) int { return int(l.Index - i) })
}
