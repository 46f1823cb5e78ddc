package collector

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vethexporter/vethexporter/internal/nettest"
)

// Every container's eth0 has the same index, and so has its peer's peer: only the namespace's number tells them apart.
func TestPairs(t *testing.T) {
	hub, outer, inner := nettest.New(t), nettest.New(t), nettest.New(t)
	hub.Bridge(t, "br0")
	all := []*nettest.NS{hub, outer, inner}
	var pods []*nettest.NS
	for i := range 5 {
		pod := nettest.New(t)
		nettest.Veth(t, hub, fmt.Sprintf("pod%d", i), pod, "eth0")
		hub.Enslave(t, fmt.Sprintf("pod%d", i), "br0")
		pods = append(pods, pod)
	}
	nettest.Veth(t, hub, "outer", outer, "eth0")
	hub.Enslave(t, "outer", "br0")
	outer.Bridge(t, "br0")
	nettest.Veth(t, outer, "inner", inner, "eth0")
	outer.Enslave(t, "inner", "br0")
	pods[1].MTU(t, "eth0", 1400)
	hub.Down(t, "pod2")
	pods[3].Exec(t, "ip", "link", "add", "link", "eth0", "name", "mv0", "type", "macvlan", "mode", "vepa")

	got := newWorld(t, []*Collector{newPair()}, append(all, pods...)...).scrape()
	hubName, outerName := got.name(t, hub), got.name(t, outer)
	info := func(ns *nettest.NS, peerNS, peer, bridge string) {
		t.Helper()
		got.value(t, `veth_pair_info{netns=%q,device="eth0",peer_netns=%q,peer_device=%q,bridge=%q}`, got.name(t, ns), peerNS, peer, bridge)
	}
	for i, pod := range pods {
		info(pod, hubName, fmt.Sprintf("pod%d", i), "br0")
	}
	info(outer, hubName, "outer", "br0")
	info(inner, outerName, "inner", "br0")
	count := 0
	for series := range got {
		if strings.HasPrefix(series, "veth_pair_info{") && (strings.Contains(series, hubName) || strings.Contains(series, outerName)) {
			count++
		}
	}
	if count != 7 {
		t.Errorf("%d pairs, want 7", count)
	}
	for i, want := range map[int]float64{0: 1, 2: 0} {
		if v := got.value(t, `veth_pair_up{netns=%q,device="eth0"}`, got.name(t, pods[i])); v != want {
			t.Errorf("pod%d is up: %v, want %v", i, v, want)
		}
	}
	if v := got.value(t, `veth_pair_mtu_difference_bytes{netns=%q,device="eth0"}`, got.name(t, pods[1])); v != -100 {
		t.Errorf("difference of the MTUs %v, want -100", v)
	}
	if v := got.value(t, `veth_bridge_ports{netns=%q,device="br0"}`, hubName); v != 6 {
		t.Errorf("%v ports, want 6", v)
	}
	got.value(t, `veth_child_info{netns=%q,device="mv0",kind="macvlan",mode="vepa",parent_netns=%q,parent_device="eth0"}`, got.name(t, pods[3]), got.name(t, pods[3]))
}

// A packet that the receiving CPU's backlog has no room for is counted by both ends of the pair, and is one packet.
func TestPairDropsOnce(t *testing.T) {
	a, b := nettest.New(t), nettest.New(t)
	hub := nettest.New(t)
	hub.Bridge(t, "br0")
	nettest.Connect(t, hub, "side-a", a, "eth0")
	hubIP, bIP := nettest.Connect(t, hub, "side-b", b, "eth0")
	_ = hubIP
	hub.Enslave(t, "side-b", "br0") // so that hub's end is the host's
	hub.Exec(t, "ip", "addr", "flush", "dev", "side-b")
	hub.Addr(t, "br0", hubIP+"/24")
	b.Sysfs(t, "eth0/queues/rx-0/rps_cpus", "2")
	w := newWorld(t, []*Collector{newPair(), newDevice(), newSoftnet()}, hub, a, b)
	before := w.scrape()
	nettest.Host().Sysctl(t, "net.core.netdev_max_backlog", "2")
	hub.Do(t, func() { flood(t, bIP, 200000) })
	after := w.scrape()

	name, hubName := after.name(t, b), after.name(t, hub)
	towards := after.value(t, `veth_pair_dropped_total{netns=%q,device="eth0",direction="receive"}`, name)
	from := after.value(t, `veth_pair_dropped_total{netns=%q,device="eth0",direction="transmit"}`, name)
	sent := after.value(t, `veth_device_transmit_dropped_total{netns=%q,device="side-b"}`, hubName)
	received := after.value(t, `veth_device_receive_dropped_total{netns=%q,device="eth0"}`, name)
	softnet := after.value(t, `veth_softnet_dropped_total{cpu="1"}`) - before.value(t, `veth_softnet_dropped_total{cpu="1"}`)
	if sent == 0 || sent != received || softnet < sent {
		t.Errorf("the sender dropped %v, the receiver %v, the CPU %v: want the same loss on both ends", sent, received, softnet)
	}
	hubEnd, bEnd := hub.IPLinkOf(t, "side-b").Stats64, b.IPLinkOf(t, "eth0").Stats64
	if towards != sent || towards != float64(hubEnd.TX["dropped"]) || towards != float64(bEnd.RX["dropped"]) {
		t.Errorf("towards b the pair lost %v; ip says that hub dropped %d and b %d", towards, hubEnd.TX["dropped"], bEnd.RX["dropped"])
	}
	// The way back carries a few refusals, some of which meet a full backlog too.
	if from != float64(bEnd.TX["dropped"]) || from > towards/100 {
		t.Errorf("from b the pair lost %v; ip says that b dropped %d", from, bEnd.TX["dropped"])
	}
}

// flood sends small packets from the first CPU as fast as it can.
func flood(t *testing.T, to string, packets int) {
	var cpu unix.CPUSet
	cpu.Set(0)
	if err := unix.SchedSetaffinity(0, &cpu); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	addr := &unix.SockaddrInet4{Port: 9}
	copy(addr.Addr[:], net.ParseIP(to).To4())
	for range packets {
		_ = unix.Sendto(fd, []byte{0}, 0, addr) // refused ones are part of it
	}
}

// A protocol that nobody listens to is dropped by the receiver, and is no loss of the pair.
func TestUnknownProtocolIsNoLoss(t *testing.T) {
	a, b := nettest.Pair(t)
	a.Do(t, func() {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		frame := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb6}, make([]byte, 46)...)
		for range 50 {
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: device.Index}); err != nil {
				t.Fatal(err)
			}
		}
	})
	got := newWorld(t, []*Collector{newPair(), newDevice()}, a, b).scrape()
	if v := got.value(t, `veth_device_receive_dropped_total{netns=%q,device="eth0"}`, got.name(t, b)); v != 50 {
		t.Errorf("b dropped %v, want 50", v)
	}
	for series, value := range got {
		if strings.HasPrefix(series, "veth_pair_dropped_total{") && value != 0 {
			t.Errorf("%s = %v", series, value)
		}
	}
}

// The kernel tells nobody that a peer has another index since it moved, so what is kept of the host's devices is old. The
// container's word counts.
func TestPairThatMoved(t *testing.T) {
	pod := nettest.New(t)
	host, peer := nettest.Unique(), nettest.Unique()
	nettest.Veth(t, nettest.Host(), host, nettest.Host(), peer)
	nettest.Host().Down(t, peer)
	w := newWorld(t, []*Collector{newPair()}, pod)
	w.scrape() // knows the devices from now on
	// The index that it has here is taken there.
	index := nettest.Host().IPLinkOf(t, peer).Ifindex
	pod.Exec(t, "ip", "link", "add", "name", "taken", "index", fmt.Sprint(index), "type", "bridge")
	nettest.Host().Exec(t, "ip", "link", "set", peer, "netns", pod.Path)
	got := w.scrape()
	name := got.name(t, pod)
	got.value(t, `veth_pair_info{netns=%q,device=%q,peer_netns="host",peer_device=%q,bridge=""}`, name, peer, host)
	for _, ns := range []string{"host", name} {
		if v := got.value(t, `veth_pair_orphan_devices{netns=%q}`, ns); v != 0 {
			t.Errorf("%v orphans in %s", v, ns)
		}
	}
}

// A bridge takes 1,023 ports.
func TestBridgeIsFull(t *testing.T) {
	ns := nettest.New(t)
	ns.Bridge(t, "br0")
	var batch strings.Builder
	for i := range 1023 {
		fmt.Fprintf(&batch, "link add p%d type veth peer name q%d\nlink set p%d master br0\n", i, i, i)
	}
	file := filepath.Join(t.TempDir(), "batch")
	if err := os.WriteFile(file, []byte(batch.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	ns.Exec(t, "ip", "-batch", file)
	ns.Exec(t, "ip", "link", "add", "last", "type", "veth", "peer", "name", "tsal")
	if _, err := ns.TryExec(t, "ip", "link", "set", "last", "master", "br0"); err == nil {
		t.Error("the bridge took more than 1,023 ports")
	}
	got := newWorld(t, []*Collector{newPair()}, ns).scrape()
	if v := got.value(t, `veth_bridge_ports{netns=%q,device="br0"}`, got.name(t, ns)); v != 1023 {
		t.Errorf("%v ports, want 1023", v)
	}
}

// While pairs come and go, each that is seen is one that was made, and none is seen twice.
func TestPairsUnderChurn(t *testing.T) {
	hub := nettest.New(t)
	pods := []*nettest.NS{hub}
	for range 8 {
		pods = append(pods, nettest.New(t))
	}
	w := newWorld(t, []*Collector{newPair(), newDevice(), newQdisc(), newSteering()}, pods...)
	file := filepath.Join(t.TempDir(), "batch")
	stop := make(chan struct{})
	made := make(chan error, 1)
	go func() {
		defer close(made)
		for first := 0; first < 500; first += 10 {
			select {
			case <-stop:
				return
			default:
			}
			var batch strings.Builder
			for i := first; i < first+10; i++ {
				fmt.Fprintf(&batch, "link add h%d type veth peer name c%d netns %s\nlink set h%d up\n", i, i, pods[1+i%8].Path, i)
			}
			for i := first; i < first+10; i++ {
				fmt.Fprintf(&batch, "link del h%d\n", i)
			}
			if err := os.WriteFile(file, []byte(batch.String()), 0o600); err != nil {
				made <- err
				return
			}
			if out, err := hub.TryExec(t, "ip", "-batch", file); err != nil {
				made <- fmt.Errorf("ip: %w: %s", err, out)
				return
			}
		}
	}()
	ends := regexp.MustCompile(`device="([hc])(\d+)",peer_netns="[^"]*",peer_device="([hc])(\d+)"`)
	pairs := 0
	for running := true; running; {
		select {
		case err, open := <-made:
			if err != nil {
				t.Fatal(err)
			}
			running = open
		default:
		}
		for series := range w.scrape() {
			if m := ends.FindStringSubmatch(series); m != nil {
				pairs++
				if m[2] != m[4] || m[1] == m[3] {
					t.Errorf("wrong pair: %s", series)
				}
			}
		}
		if t.Failed() {
			close(stop)
			<-made
			break
		}
	}
	if pairs == 0 {
		t.Error("no pair was ever seen: the test proves nothing")
	}
	t.Logf("%d pairs seen", pairs)
}
