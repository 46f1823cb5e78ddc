package collector

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vethexporter/vethexporter/internal/nettest"
)

// An end with a larger MTU than its peer sends what the peer does not take. Both ends count it; it is lost once.
func TestPairOfTwoMTUs(t *testing.T) {
	a, b := nettest.Pair(t)
	a.MTU(t, "eth0", 9000)
	w := newWorld(t, []*Collector{newPair(), newDevice()}, a, b)
	a.Do(t, func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE); err != nil {
			t.Fatal(err)
		}
		addr := &unix.SockaddrInet4{Port: 9}
		copy(addr.Addr[:], net.ParseIP(b.IP).To4())
		for range 11 {
			_ = unix.Sendto(fd, make([]byte, 4000), 0, addr) // the sender may be told, with ENOBUFS
		}
	})
	got := w.scrape()
	aName, bName := got.name(t, a), got.name(t, b)
	sent := got.value(t, `veth_device_transmit_dropped_total{netns=%q,device="eth0"}`, aName)
	received := got.value(t, `veth_device_receive_dropped_total{netns=%q,device="eth0"}`, bName)
	if sent != 11 || received != sent || float64(a.IPLinkOf(t, "eth0").Stats64.TX["dropped"]) != sent {
		t.Errorf("a dropped %v, b %v, want 11 of each", sent, received)
	}
	lost, difference := 0.0, 0.0
	for series, value := range got {
		switch {
		case strings.HasPrefix(series, "veth_pair_dropped_total{") && (strings.Contains(series, aName) || strings.Contains(series, bName)):
			lost += value
		case strings.HasPrefix(series, "veth_pair_mtu_difference_bytes{") && (strings.Contains(series, aName) || strings.Contains(series, bName)):
			difference = value
		}
	}
	if lost != 11 || difference != 7500 && difference != -7500 {
		t.Errorf("the pair lost %v and its MTUs differ by %v, want 11 and 7500", lost, difference)
	}
}

// A mask that changes in the middle of a flow moves it between CPUs: the steering shows where. Most often the flow is reordered
// by it, which is for the machine to decide; the counters must be the kernel's either way.
func TestSteeringMovesAFlow(t *testing.T) {
	a, b := nettest.Pair(t)
	w := newWorld(t, []*Collector{newTCP(), newSteering()}, a, b)
	w.scrape()
	done := make(chan int64, 1)
	go func() {
		done <- nettest.TCPFlow(t, a, b, b.IP, nettest.FlowOptions{Duration: 2 * time.Second, Congestion: "reno"})
	}()
	masks := map[float64]bool{}
	for i, end := 0, time.Now().Add(1500*time.Millisecond); time.Now().Before(end); i++ {
		mask := strconv.Itoa(1 + i%3)
		b.Sysfs(t, "eth0/queues/rx-0/rps_cpus", mask)
		if i%50 == 0 || i%50 == 1 {
			got := w.scrape()
			want := map[string]float64{"1": 1, "2": 1, "3": 2}[mask]
			v := got.value(t, `veth_rps_cpus{netns=%q,device="eth0",queue="0"}`, got.name(t, b))
			if masks[v] = true; v != want {
				t.Errorf("%v CPUs with mask %s", v, mask)
			}
		}
	}
	if moved := <-done; moved == 0 {
		t.Fatal("nothing was sent")
	}
	if len(masks) != 2 {
		t.Errorf("saw masks of %v CPUs, want of 1 and of 2", masks)
	}
	got := w.scrape()
	for _, ns := range []*nettest.NS{a, b} {
		counters := ns.Nstat(t)
		for series, kernel := range map[string]string{
			"ofo_queue": "TcpExtTCPOFOQueue", "sack_reorder": "TcpExtTCPSACKReorder", "fast_retrans": "TcpExtTCPFastRetrans",
		} {
			v := got.value(t, "%s", fmt.Sprintf("veth_tcp_%s_total{netns=%q}", series, got.name(t, ns)))
			if v != float64(counters[kernel]) {
				t.Errorf("%s = %v, nstat says %d", series, v, counters[kernel])
			}
			t.Logf("%s: %v", series, v)
		}
	}
}
