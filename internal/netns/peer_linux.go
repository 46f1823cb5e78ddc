package netns

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Seen is what one scrape keeps of a namespace that it visited, to tell which device of it belongs with which of another.
type Seen struct {
	Namespace *Namespace
	Cookie    uint64
	Links     []Link   // ordered by index
	Peers     []Peer   // of the link of the same place
	Overlay   *Overlay // nil for a namespace without a tunnel or a bridge, which forwards for nobody
}

// Peer is a device's other end, or the device below it. Seen is nil if it is in no namespace that the scrape visited, or
// not known for certain.
type Peer struct {
	Seen *Seen
	At   int // place in Seen.Links
}

// peerKey is a namespace as another one numbers it. The number of a namespace stays the same as long as both live, so what
// it leads to may be kept under cookies, which are never used again.
type peerKey struct {
	cookie uint64
	nsid   int32
}

const (
	rtmGetNSID   = 90 // RTM_GETNSID
	rtmNewNSID   = 88 // RTM_NEWNSID
	rtgenmsgSize = 4  // sizeof(struct rtgenmsg), padded
	netnsaNSID   = 1  // NETNSA_NSID
	netnsaFD     = 3  // NETNSA_FD
	maxPeers     = 1 << 16
)

// See returns what is kept of the namespace that the view shows, with the peers of its devices among those seen before: of
// two ends, the one that is visited later finds the other. An index alone proves nothing, as every namespace counts its
// devices from 1. The kernel's number for the peer's namespace does, asked for each namespace that comes into question.
// With an error it returns what was kept nevertheless, nil if that is nothing.
func (v *Visitor) See(view *View, all []*Seen) (*Seen, error) {
	links, _, err := view.Links()
	if err != nil {
		return nil, err
	}
	s := &Seen{Namespace: view.Namespace, Cookie: view.Cookie, Links: slices.Clone(links), Peers: make([]Peer, len(links))}
	asked := map[*Seen]int32{}
	for i := range s.Links {
		l := &s.Links[i]
		if l.Peer == 0 {
			continue
		}
		if l.PeerNSID < 0 {
			if at, ok := FindLink(s.Links, l.Peer); ok {
				s.Peers[i] = Peer{Seen: s, At: at}
			}
			continue
		}
		for _, other := range all {
			at, ok := FindLink(other.Links, l.Peer)
			if !ok || l.Kind == "veth" && !mayBePair(l, other, at) {
				continue
			}
			if v.isPeer(view, l.PeerNSID, other, asked) {
				s.Peers[i] = Peer{Seen: other, At: at}
				break
			}
		}
	}
	if view.Namespace.Host || slices.ContainsFunc(s.Links, func(l Link) bool { return l.Tunnel != nil || l.Kind == "bridge" }) {
		c, err := v.routeConn()
		if err == nil {
			s.Overlay, err = v.readOverlay(c, s.Links, func(l *Link) *Seen {
				for _, other := range all {
					if v.isPeer(view, l.PeerNSID, other, asked) {
						return other
					}
				}
				return nil
			})
		}
		if err != nil {
			s.Overlay = nil
			return s, fmt.Errorf("overlay: %w", err)
		}
	}
	return s, nil
}

// mayBePair tells whether it is worth to ask if a device of other is the other end of l. What is kept of the host's devices
// may have an old index for theirs: the kernel tells nobody when a peer moves.
func mayBePair(l *Link, other *Seen, at int) bool {
	candidate := &other.Links[at]
	return candidate.Kind == "veth" && (other.Namespace.Host || candidate.Peer == l.Index)
}

// isPeer tells whether nsid, in the namespace that the thread is in, is the number of other. It keeps in asked what it asked.
func (v *Visitor) isPeer(view *View, nsid int32, other *Seen, asked map[*Seen]int32) bool {
	key := peerKey{cookie: view.Cookie, nsid: nsid}
	if known, ok := v.peers[key]; ok && known == other.Cookie && known != 0 {
		return true
	}
	got, ok := asked[other]
	if !ok {
		got = v.numberOf(other)
		asked[other] = got
	}
	if got != nsid {
		return false
	}
	if view.Cookie != 0 {
		if len(v.peers) >= maxPeers {
			clear(v.peers)
		}
		v.peers[key] = other.Cookie
	}
	return true
}

// numberOf returns the number that the namespace of this thread has for other, or -1.
func (v *Visitor) numberOf(other *Seen) int32 {
	fd, err := v.open(other.Namespace)
	if err != nil {
		return -1
	}
	defer unix.Close(fd)
	if cookie := cookieOf(fd); cookie != 0 && cookie != other.Cookie {
		return -1 // another namespace got its inode
	}
	nsid, err := v.nsid(fd)
	if err != nil {
		return -1
	}
	return nsid
}

// nsid returns the number that the namespace of this thread has for that of fd, -1 for none.
func (v *Visitor) nsid(fd int) (int32, error) {
	c, err := v.routeConn()
	if err != nil {
		return -1, err
	}
	data := make([]byte, rtgenmsgSize, rtgenmsgSize+8)
	data = binary.NativeEndian.AppendUint16(data, 8)
	data = binary.NativeEndian.AppendUint16(data, netnsaFD)
	data = binary.NativeEndian.AppendUint32(data, uint32(fd))
	nsid := int32(-1)
	err = c.request(netlink.Message{Header: netlink.Header{Type: rtmGetNSID}, Data: data}, func(typ uint16, data []byte) bool {
		if typ == rtmNewNSID && len(data) >= rtgenmsgSize {
			if b := attribute(data[rtgenmsgSize:], netnsaNSID); len(b) >= 4 {
				nsid = int32(binary.NativeEndian.Uint32(b))
			}
		}
		return true
	})
	return nsid, err
}
