package collector

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vethexporter/vethexporter/internal/nettest"
)

// Packets that do not fit the second hop are refused where they must not be fragmented, and fragmented where they may be.
func TestFragmentation(t *testing.T) {
	a, r, b := nettest.Routed(t)
	r.MTU(t, "eth1", 1300)
	w := newWorld(t, []*Collector{newIP()}, a, r, b)
	a.Do(t, func() {
		for _, discover := range []int{unix.IP_PMTUDISC_PROBE, unix.IP_PMTUDISC_DONT} {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, discover); err != nil {
				t.Fatal(err)
			}
			to := &unix.SockaddrInet4{Port: 9}
			copy(to.Addr[:], net.ParseIP(b.IP).To4())
			for range 5 {
				_ = unix.Sendto(fd, make([]byte, 1400), 0, to) // refusals come back
			}
		}
	})
	got := w.scrape()
	for _, ns := range []*nettest.NS{a, r, b} {
		counters := ns.Nstat(t)
		for _, c := range ipCounters {
			if v := got.value(t, c.def.Name+"{netns=%q}", got.name(t, ns)); v != float64(counters[c.table+c.kernel]) {
				t.Errorf("%s = %v, nstat says %d", c.def.Name, v, counters[c.table+c.kernel])
			}
		}
	}
	if v := got.value(t, `veth_ip_frag_fails_total{netns=%q}`, got.name(t, r)); v != 5 {
		t.Errorf("r refused %v packets, want 5", v)
	}
}
