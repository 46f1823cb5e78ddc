package collector

import (
	"testing"

	"github.com/vethexporter/vethexporter/internal/netns"
)

// The overheads are those by which the kernel itself lowers the MTU of a new tunnel.
func TestOverhead(t *testing.T) {
	for _, test := range []struct {
		kind    string
		ipv6    bool
		options int
		want    int
	}{
		{"vxlan", false, 0, 50}, {"vxlan", true, 0, 70}, {"geneve", false, 0, 50}, {"geneve", true, 0, 70},
		{"gre", false, 0, 24}, {"gre", false, 4, 28}, {"gretap", false, 0, 38}, {"ip6gre", true, 8, 52}, {"ip6gretap", true, 8, 66},
		{"ipip", false, 0, 20}, {"sit", false, 0, 20}, {"ip6tnl", true, 8, 48}, {"wireguard", false, 0, 60}, {"wireguard", true, 0, 80},
		{"macsec", false, 0, 32},
	} {
		l := &netns.Link{Kind: test.kind, Tunnel: &netns.Tunnel{Options: test.options}}
		if got := overhead(l, test.ipv6); got != test.want {
			t.Errorf("%s, IPv6 %v, options of %d: %d, want %d", test.kind, test.ipv6, test.options, got, test.want)
		}
	}
}
