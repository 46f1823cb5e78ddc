package netns

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Kinds that not every kernel has are known by what the kernel's headers say of their attributes.
func TestTunnelDecode(t *testing.T) {
	v4, v6 := netip.MustParseAddr("198.18.0.9"), netip.MustParseAddr("fd00::9")
	for name, test := range map[string]struct {
		kind string
		data []byte
		want Tunnel
	}{
		"vxlan": {"vxlan", nest(0, attr(1, word(42)...), attr(2, 198, 18, 0, 9), attr(3, word(7)...), attr(7, 1), attr(15, 0x12, 0xb5), attr(18, 1))[4:],
			Tunnel{ID: 42, Remote: v4, Lower: 7, Learning: true, Port: 4789, UDPChecksum: true}},
		"vxlan over IPv6": {"vxlan", nest(0, attr(16, v6.AsSlice()...), attr(17, make([]byte, 16)...), attr(25, 1))[4:],
			Tunnel{Remote: v6, External: true}},
		"geneve": {"geneve", nest(0, attr(1, word(5)...), attr(7, v6.AsSlice()...), attr(5, 0x17, 0xc1), attr(8, 1))[4:],
			Tunnel{ID: 5, Remote: v6, Port: 6081, UDPChecksum: true}},
		"gre with key and sequence": {"gre", nest(0, attr(1, word(3)...), attr(3, 0x30, 0), attr(5, 0, 0, 0, 8), attr(7, 198, 18, 0, 9))[4:],
			Tunnel{Lower: 3, ID: 8, Remote: v4, Options: 8}},
		"ip6gre": {"ip6gre", nest(0, attr(3, 0, 0), attr(7, v6.AsSlice()...), attr(13, word(0)...))[4:],
			Tunnel{Remote: v6, Options: 8}},
		"ipip":                     {"ipip", nest(0, attr(3, 198, 18, 0, 9))[4:], Tunnel{Remote: v4}},
		"ip6tnl":                   {"ip6tnl", nest(0, attr(3, v6.AsSlice()...), attr(8, word(0)...))[4:], Tunnel{Remote: v6, Options: 8}},
		"ip6tnl without the limit": {"ip6tnl", nest(0, attr(3, v6.AsSlice()...), attr(8, word(1)...))[4:], Tunnel{Remote: v6}},
	} {
		t.Run(name, func(t *testing.T) {
			var got Tunnel
			tunnelKinds[test.kind](&got, test.data)
			if diff := cmp.Diff(test.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}
