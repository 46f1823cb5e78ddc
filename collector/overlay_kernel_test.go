package collector

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vethexporter/vethexporter/internal/nettest"
)

// ip runs ip in the namespace.
func ip(t *testing.T, ns *nettest.NS, format string, args ...any) {
	t.Helper()
	ns.Exec(t, "ip", strings.Fields(fmt.Sprintf(format, args...))...)
}

// A tunnel's MTU plus what it adds has to fit the device below, by way of the route to the peer, through all tunnels below.
func TestOverlayHeadroom(t *testing.T) {
	a, b := nettest.Pair(t)
	for i, ns := range []*nettest.NS{a, b} {
		ns.Sysctl(t, "net/ipv6/conf/eth0/disable_ipv6", "0")
		ip(t, ns, "addr add fd00:198:18::%d/64 dev eth0 nodad", i+1)
	}
	// Without a device of its own the kernel takes any MTU.
	ip(t, a, "link add vx4 mtu 1500 type vxlan id 1 dstport 4789 remote %s nolearning noudpcsum", b.IP)
	ip(t, a, "link add vx6 mtu 1500 type vxlan id 2 dstport 4790 remote fd00:198:18::2")
	ip(t, a, "link add fits mtu 1450 type vxlan id 3 dstport 4791 remote %s", b.IP)
	ip(t, a, "link add inner mtu 1450 type vxlan id 4 dstport 4792 remote 198.19.255.2")
	ip(t, a, "link add bound type vxlan id 5 dstport 4793 dev eth0 group 239.1.1.1")
	ip(t, a, "link add fdb mtu 1400 type vxlan id 6 dstport 4794")
	ip(t, a, "link add down mtu 1500 type vxlan id 7 dstport 4795 remote %s", b.IP)
	ip(t, a, "link add lost mtu 1500 type vxlan id 8 dstport 4796 remote 203.0.113.1")
	for _, dev := range []string{"vx4", "vx6", "fits", "inner", "bound", "fdb", "lost"} {
		ip(t, a, "link set %s up", dev)
	}
	ip(t, a, "addr add 198.19.255.1/24 dev fits")
	a.Exec(t, "bridge", "fdb", "append", "00:00:00:00:00:00", "dev", "fdb", "dst", b.IP)

	w := newWorld(t, []*Collector{newOverlay()}, a, b)
	got := w.scrape()
	name := got.name(t, a)
	for dev, want := range map[string]float64{"vx4": -50, "vx6": -70, "fits": 0, "inner": -50, "bound": 0, "fdb": 50} {
		if v := got.value(t, `veth_overlay_mtu_headroom_bytes{netns=%q,device=%q}`, name, dev); v != want {
			t.Errorf("headroom of %s = %v, want %v", dev, v, want)
		}
	}
	got.value(t, `veth_overlay_info{netns=%q,device="vx4",kind="vxlan",id="1",remote=%q,port="4789",underlay="eth0",learning="false",udp_checksum="false"}`, name, b.IP)
	got.value(t, `veth_overlay_info{netns=%q,device="inner",kind="vxlan",id="4",remote="198.19.255.2",port="4792",underlay="fits",learning="true",udp_checksum="true"}`, name)
	got.absent(t, `veth_overlay_info{netns=%q,device="down"`, name)
	got.absent(t, `veth_overlay_mtu_headroom_bytes{netns=%q,device="lost"`, name) // no route: unknown, not 0

	compareTunnels(t, got, a)

	// The device below shrinks, and all above it with it.
	a.MTU(t, "eth0", 1400)
	got = w.scrape()
	for dev, want := range map[string]float64{"vx4": -150, "fits": -100, "inner": -150} {
		if v := got.value(t, `veth_overlay_mtu_headroom_bytes{netns=%q,device=%q}`, name, dev); v != want {
			t.Errorf("headroom of %s over 1400 = %v, want %v", dev, v, want)
		}
	}
}

// compareTunnels checks that the scrape has the settings of every tunnel that is up as ip prints them.
func compareTunnels(t *testing.T, got samples, ns *nettest.NS) {
	t.Helper()
	var links []struct {
		Ifname   string
		Flags    []string
		LinkInfo struct {
			Data struct {
				ID              int
				Remote, Remote6 string
				Group           string
				Port            int
				Learning        bool
				UDPChecksum     bool `json:"udp_csum"`
			} `json:"info_data"`
		}
	}
	if err := json.Unmarshal(ns.Exec(t, "ip", "-d", "-j", "link", "show", "type", "vxlan"), &links); err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, l := range links {
		if !slices.Contains(l.Flags, "UP") {
			continue
		}
		d := l.LinkInfo.Data
		series := fmt.Sprintf(`veth_overlay_info{netns=%q,device=%q,kind="vxlan",id="%d",remote=%q,port="%d",`,
			got.name(t, ns), l.Ifname, d.ID, d.Remote+d.Remote6+d.Group, d.Port)
		flags := fmt.Sprintf(`learning="%t",udp_checksum="%t"}`, d.Learning, d.UDPChecksum)
		found := false
		for name := range got {
			found = found || strings.HasPrefix(name, series) && strings.HasSuffix(name, flags)
		}
		if !found {
			t.Errorf("no series %s...%s", series, flags)
		}
		compared++
	}
	if compared < 6 {
		t.Errorf("only %d tunnels compared", compared)
	}
}

// A tunnel that was made in one namespace and moved to another, as Docker's overlay networks have it, still sends through
// the first, which is visited before it, as the host's is.
func TestTunnelThatMoved(t *testing.T) {
	dir := t.TempDir()
	node, pod, far := nettest.Named(t, dir, "a-node"), nettest.Named(t, dir, "b-pod"), nettest.New(t)
	_, farIP := nettest.Connect(t, node, "eth0", far, "eth0")
	node.Bridge(t, "br0")
	node.Route(t, "default", farIP)
	node.MTU(t, "eth0", 1400)
	ip(t, node, "link add vx0 mtu 1450 type vxlan id 9 dstport 4789")
	ip(t, node, "link set vx0 netns %s", pod.Path)
	ip(t, pod, "link set vx0 up")
	got := newWorld(t, []*Collector{newOverlay()}, node, pod, far).scrape()
	if v := got.value(t, `veth_overlay_mtu_headroom_bytes{netns=%q,device="vx0"}`, got.name(t, pod)); v != -100 {
		t.Errorf("headroom %v, want -100", v)
	}
	got.value(t, `veth_overlay_info{netns=%q,device="vx0",kind="vxlan",id="9",remote="",port="4789",underlay="eth0",learning="true",udp_checksum="true"}`, got.name(t, pod))
}

// A container of 1500 on a bridge with a tunnel of 1450 sends what the tunnel does not take.
func TestPodHeadroom(t *testing.T) {
	node, far := nettest.Pair(t)
	pods := []*nettest.NS{nettest.New(t), nettest.New(t)}
	node.Bridge(t, "br0")
	for i, pod := range pods {
		nettest.Veth(t, node, fmt.Sprintf("pod%d", i), pod, "eth0")
		node.Enslave(t, fmt.Sprintf("pod%d", i), "br0")
	}
	pods[1].MTU(t, "eth0", 1450)
	ip(t, node, "link add vx0 mtu 1450 type vxlan id 1 dstport 4789 remote %s", far.IP)
	ip(t, node, "link set vx0 master br0 up")
	node.Route(t, "default", far.IP)
	got := newWorld(t, []*Collector{newOverlay()}, append(pods, node, far)...).scrape()
	for i, want := range []float64{-50, 0} {
		if v := got.value(t, `veth_overlay_pod_headroom_bytes{netns=%q,device="eth0",through="vx0"}`, got.name(t, pods[i])); v != want {
			t.Errorf("headroom of pod %d through the tunnel = %v, want %v", i, v, want)
		}
		if v := got.value(t, `veth_overlay_pod_headroom_bytes{netns=%q,device="eth0",through="eth0"}`, got.name(t, pods[i])); v != want+50 {
			t.Errorf("headroom of pod %d through the uplink = %v, want %v", i, v, want+50)
		}
	}
	if v := got.value(t, `veth_bridge_mtu_spread_bytes{netns=%q,device="br0"}`, got.name(t, node)); v != 50 {
		t.Errorf("the bridge's MTUs differ by %v, want 50", v)
	}
}

// A wrong permanent neighbour makes the peer drop frames as another's: nothing else counts them.
func TestStaleNeighbor(t *testing.T) {
	a, b := nettest.Pair(t)
	for i, ns := range []*nettest.NS{a, b} {
		ip(t, ns, "link add vx0 type vxlan id 42 dstport 4789 remote %s", []string{b.IP, a.IP}[i])
		ip(t, ns, "link set vx0 up")
		ip(t, ns, "addr add 198.19.254.%d/24 dev vx0", i+1)
	}
	right := b.IPLinkOf(t, "vx0").Address
	w := newWorld(t, []*Collector{newOverlay(), newDevice()}, a, b)
	for _, test := range []struct {
		address string
		stale   float64
	}{{right, 0}, {"02:00:00:00:00:01", 1}} {
		ip(t, a, "neigh replace 198.19.254.2 lladdr %s dev vx0 nud permanent", test.address)
		before := w.scrape()
		sendUDP(t, a, "198.19.254.2:9", 5)
		got := w.scrape()
		if v := got.value(t, `veth_overlay_stale_neighbors{netns=%q,device="vx0"}`, got.name(t, a)); v != test.stale {
			t.Errorf("stale neighbours with %s: %v, want %v", test.address, v, test.stale)
		}
		if v := got.value(t, `veth_overlay_permanent_neighbors{netns=%q,device="vx0"}`, got.name(t, a)); v != 1 {
			t.Errorf("permanent neighbours: %v, want 1", v)
		}
		dropped := func(s samples, what string) float64 {
			return s.value(t, "veth_device_receive_"+what+`_total{netns=%q,device="vx0"}`, s.name(t, b))
		}
		if v := dropped(got, "otherhost_dropped") - dropped(before, "otherhost_dropped"); v != 5*test.stale {
			t.Errorf("with %s b dropped %v frames as another's, want %v", test.address, v, 5*test.stale)
		}
		if v := dropped(got, "dropped") - dropped(before, "dropped"); v != 0 {
			t.Errorf("with %s b dropped %v frames besides", test.address, v)
		}
	}
}

// sendUDP sends datagrams and gives the receiver a moment.
func sendUDP(t *testing.T, from *nettest.NS, to string, n int) {
	t.Helper()
	from.Do(t, func() {
		c, err := net.Dial("udp4", to)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		for range n {
			_, _ = c.Write([]byte("x")) // a refusal of the one before may come back
		}
	})
	time.Sleep(50 * time.Millisecond)
}

// Two containers with one hardware address get each other's packets.
func TestDuplicateAddress(t *testing.T) {
	node := nettest.New(t)
	node.Bridge(t, "br0")
	var pods []*nettest.NS
	for i := range 3 {
		pod := nettest.New(t)
		nettest.Veth(t, node, fmt.Sprintf("pod%d", i), pod, "eth0")
		node.Enslave(t, fmt.Sprintf("pod%d", i), "br0")
		pods = append(pods, pod)
	}
	w := newWorld(t, []*Collector{newOverlay()}, append(pods, node)...)
	for _, want := range []float64{0, 2} {
		got := w.scrape()
		if v := got.value(t, `veth_bridge_duplicate_address_devices{netns=%q,device="br0"}`, got.name(t, node)); v != want {
			t.Errorf("%v devices share an address, want %v", v, want)
		}
		ip(t, pods[2], "link set eth0 address %s", pods[1].IPLinkOf(t, "eth0").Address)
	}
}
