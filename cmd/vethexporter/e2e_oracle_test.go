package main_test

import (
	"fmt"
	"maps"
	"net"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vethexporter/vethexporter/internal/nettest"
)

// oracle is what other programs print of one namespace at one time.
type oracle struct {
	nstat     map[string]uint64 // and, by its name in the kernel, the one value that nstat leaves out
	links     []nettest.IPLink
	conntrack map[string]uint64
	entries   uint64
}

func ask(t *testing.T, n *nettest.NS) oracle {
	t.Helper()
	return oracle{nstat(t, n), n.IPLink(t), n.ConntrackStats(t), n.ConntrackCount(t)}
}

// established is the value that nstat leaves out, being no counter.
const established = "TcpCurrEstab"

// nstat is nstat's and, for the one value that it leaves out, ss's word.
func nstat(t *testing.T, n *nettest.NS) map[string]uint64 {
	t.Helper()
	values := n.Nstat(t)
	sockets := n.Exec(t, "ss", "--no-header", "--tcp", "--numeric", "state", "established", "state", "close-wait")
	values[established] = uint64(strings.Count(string(sockets), "\n"))
	return values
}

// nstatNames returns nstat's name for each metric of the tcp collector.
func nstatNames(t *testing.T) map[string]string {
	t.Helper()
	names := sources(t, "tcp")
	for metric, source := range names {
		fields := strings.Fields(source) // such as /proc/net/netstat TcpExt TCPOFOQueue
		if len(fields) != 3 {
			t.Fatalf("%s: source %q", metric, source)
		}
		names[metric] = fields[1] + fields[2]
	}
	return names
}

// conntrackNames are conntrack's names of the counters, behind veth_conntrack_ and before _total.
var conntrackNames = map[string]string{
	"found": "found", "invalid": "invalid", "insert": "insert", "insert_failed": "insert_failed", "drop": "drop",
	"early_drop": "early_drop", "error": "error", "search_restart": "search_restart", "clash_resolve": "clash_resolve",
	"chain_toolong": "chaintoolong",
}

// counter returns what nstat's value is in the metric's unit.
func counter(name string, value uint64) float64 {
	if name == "TcpExtTCPMemoryPressuresChrono" {
		return float64(value) / 1000 // milliseconds
	}
	return float64(value)
}

// compareTCP wants the metrics to be there that nstat knows, and no others, each with a value from before to after.
func compareTCP(t *testing.T, s *scrape, names map[string]string, netns string, before, after map[string]uint64) {
	t.Helper()
	for _, metric := range slices.Sorted(maps.Keys(names)) {
		found := s.find(metric, "netns", netns)
		low, known := before[names[metric]]
		if known != (len(found) == 1) {
			t.Errorf("%s of %s: %d series, nstat knows it: %v", metric, netns, len(found), known)
			continue
		}
		if names[metric] == established && netns == "host" {
			continue // goes up and down
		}
		if high := after[names[metric]]; known && (found[0].value < counter(names[metric], low) || found[0].value > counter(names[metric], high)) {
			t.Errorf("%s of %s is %v, nstat says %d to %d", metric, netns, found[0].value, low, high)
		}
	}
}

// compareConntrack wants each value between those before and after.
func compareConntrack(t *testing.T, s *scrape, netns string, before, after oracle) {
	t.Helper()
	if before.entries == after.entries {
		s.check(t, float64(before.entries), "veth_conntrack_entries", "netns", netns)
	}
	for metric, name := range conntrackNames {
		if _, ok := before.conntrack[name]; !ok {
			t.Errorf("conntrack -S does not print %s", name)
		}
		got := s.value(t, "veth_conntrack_"+metric+"_total", "netns", netns)
		if got < float64(before.conntrack[name]) || got > float64(after.conntrack[name]) {
			t.Errorf("%s of %s is %v, conntrack says %d to %d", metric, netns, got, before.conntrack[name], after.conntrack[name])
		}
	}
}

// compareLink wants a device to be as ip prints it.
func compareLink(t *testing.T, s *scrape, netns string, l nettest.IPLink) {
	t.Helper()
	check := func(name string, want uint64) {
		t.Helper()
		s.check(t, float64(want), "veth_device_"+name, "netns", netns, "device", l.Ifname)
	}
	for direction, counters := range map[string]map[string]uint64{"receive": l.Stats64.RX, "transmit": l.Stats64.TX} {
		for _, name := range []string{"bytes", "packets", "errors", "dropped"} {
			check(direction+"_"+name+"_total", counters[name])
		}
	}
	check("receive_multicast_total", l.Stats64.RX["multicast"])
	check("carrier_changes_total", l.Stats64.TX["carrier_changes"])
	check("mtu_bytes", uint64(l.MTU))
	flag := func(name string) uint64 {
		if slices.Contains(l.Flags, name) {
			return 1
		}
		return 0
	}
	check("up", flag("UP"))
	if flag("UP") == 1 {
		check("carrier", flag("LOWER_UP"))
	}
	kind := l.LinkInfo.Kind
	if slices.Contains(l.Flags, "LOOPBACK") {
		kind = "loopback"
	} else if kind == "" {
		kind = "physical"
	}
	s.check(t, 1, "veth_device_info", "netns", netns, "device", l.Ifname,
		"kind", kind, "ifindex", strconv.Itoa(l.Ifindex), "address", l.Address, "master", l.Master)
}

// softnet returns the columns of softnet_stat that are counters, by the metric and CPU.
func softnet(t *testing.T) map[[2]string]float64 {
	t.Helper()
	text, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		t.Fatal(err)
	}
	values := map[[2]string]float64{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		number := func(column int) float64 {
			n, err := strconv.ParseUint(fields[column], 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return float64(n)
		}
		for name, column := range map[string]int{"processed": 0, "dropped": 1, "time_squeezed": 2, "received_rps": 9, "flow_limit": 10} {
			values[[2]string{name, fmt.Sprint(number(12))}] = number(column)
		}
	}
	return values
}

// scraped returns what Prometheus has of a scrape that began after the call.
func scraped(t *testing.T, p *nettest.Prometheus) *scrape {
	t.Helper()
	since := float64(time.Now().UnixMilli()) / 1000
	p.Eventually(t, 10*time.Second, "timestamp(veth_scrape_duration_seconds)", func(s []nettest.Series) bool {
		return len(s) == 1 && s[0].Value > since
	})
	s := &scrape{samples: map[string][]sample{}}
	for _, series := range p.Query(t, `{__name__=~"veth_.+"}`) {
		name := series.Labels["__name__"]
		s.samples[name] = append(s.samples[name], sample{series.Labels, series.Value})
	}
	return s
}

// TestPrometheusEqualsOracles has containers and other namespaces talk, and then compares all that Prometheus has of them
// with what nstat, ip and conntrack print inside. It goes all the way, so that no part of it can be wrong unseen.
func TestPrometheusEqualsOracles(t *testing.T) {
	docker, dir := nettest.StartDocker(t), t.TempDir()
	e := start(t, "--docker.socket="+docker.Socket, "--path.docker-netns="+docker.Netns, "--path.netns="+dir)
	prometheus := nettest.StartPrometheus(t, nettest.PrometheusOptions{Targets: []string{e.addr()}, Interval: 500 * time.Millisecond})
	names := nstatNames(t)

	web := docker.Run(t, "web", "--network", "bridge")
	sidecar := docker.Run(t, "sidecar", "--network", "container:"+web.ID)
	client := docker.Run(t, "client", "--network", "bridge")
	router, process := nettest.Named(t, dir, "router"), nettest.WithProcess(t)
	dev := nettest.Unique()
	nettest.Connect(t, nettest.Host(), dev, router, "up0")
	_, processIP := nettest.Connect(t, router, "down0", process, "eth0")
	process.MTU(t, "eth0", 1400)
	router.TrackState(t)

	nettest.TCPFlow(t, client.NS, web.NS, web.NS.IP, nettest.FlowOptions{Bytes: 3 << 20})
	nettest.TCPFlow(t, router, process, processIP, nettest.FlowOptions{Bytes: 2 << 20})
	nettest.ListenOverflow(t, process, router, processIP, 1, 20)
	nettest.UDPBurst(t, router, processIP, 20000, 50)
	router.Down(t, "up0") // so that something is down
	connect(t, process)

	namespaces := map[string]*nettest.NS{
		"container:" + web.Name: web.NS, "container:" + client.Name: client.NS,
		"named:router": router, inodeName(process): process, "host": nettest.Host(),
	}
	read := func() map[string]oracle {
		all := map[string]oracle{}
		for name, n := range namespaces {
			all[name] = ask(t, n)
		}
		return all
	}
	// Packets of the kernel's own, such as those of neighbour discovery, may come in between: then the round does not count.
	for round := 1; ; round++ {
		before, beforeSoftnet := read(), softnet(t)
		s := scraped(t, prometheus)
		after, afterSoftnet := read(), softnet(t)
		still := true
		for name := range namespaces {
			still = still && (name == "host" || reflect.DeepEqual(before[name], after[name]))
		}
		if !still && round < 20 {
			continue
		}
		for name := range namespaces {
			compareTCP(t, s, names, name, before[name].nstat, after[name].nstat)
			compareConntrack(t, s, name, before[name], after[name])
			compareDevices(t, s, name, before[name].links, after[name].links)
		}
		for key, low := range beforeSoftnet {
			if got := s.value(t, "veth_softnet_"+key[0]+"_total", "cpu", key[1]); got < low || got > afterSoftnet[key] {
				t.Errorf("%s of CPU %s is %v, the kernel says %v to %v", key[0], key[1], got, low, afterSoftnet[key])
			}
		}
		if router := before["named:router"]; router.entries == 0 {
			t.Errorf("the router tracks nothing: %v", router.conntrack)
		}
		compareIdentity(t, s, web, sidecar, client)
		s.check(t, 0, "veth_netns_processes", "netns", "named:router")
		s.check(t, 1, "veth_netns_processes", "netns", inodeName(process))
		s.check(t, 1, "veth_netns_info", "netns", "named:router", "source", "mount", "inode", fmt.Sprint(router.Ino))
		s.check(t, 1, "veth_netns_info", "netns", inodeName(process), "source", "process", "container", "", "runtime", "")
		if faults := s.faults(); faults != nil {
			t.Error(faults)
		}
		return
	}
}

// connect makes a connection within the namespace that lasts until the test ends.
func connect(t *testing.T, n *nettest.NS) {
	t.Helper()
	n.Do(t, func() {
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		conn, err := net.Dial("tcp4", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
	})
}

// compareDevices compares those devices that are the same before and after.
func compareDevices(t *testing.T, s *scrape, netns string, before, after []nettest.IPLink) {
	t.Helper()
	compared := 0
	for _, l := range before {
		if slices.ContainsFunc(after, func(other nettest.IPLink) bool { return reflect.DeepEqual(l, other) }) {
			compareLink(t, s, netns, l)
			compared++
		}
	}
	if compared < 2 {
		t.Errorf("only %d devices of %s were still", compared, netns)
	}
	if got := len(s.find("veth_device_up", "netns", netns)); netns != "host" && got != len(before) {
		t.Errorf("%d devices of %s, want %d", got, netns, len(before))
	}
}

// compareIdentity wants one row for each container. Two share a namespace, which is named after the one that made it.
func compareIdentity(t *testing.T, s *scrape, web, sidecar, client *nettest.Container) {
	t.Helper()
	for _, row := range []struct {
		netns string
		c     *nettest.Container
	}{{web.Name, web}, {web.Name, sidecar}, {client.Name, client}} {
		s.check(t, 1, "veth_netns_info", "netns", "container:"+row.netns, "container", row.c.Name, "container_id", row.c.ID,
			"runtime", "docker", "inode", fmt.Sprint(row.c.NS.Ino), "source", "process", "pod", "", "namespace", "")
	}
	if got := len(s.find("veth_netns_info", "netns", "container:"+web.Name)); got != 2 {
		t.Errorf("%d rows for the shared namespace, want 2", got)
	}
	s.check(t, 2, "veth_netns_processes", "netns", "container:"+web.Name)
	// Each series is there once, however many containers share the namespace.
	if s.value(t, "veth_tcp_in_segs_total", "netns", "container:"+web.Name) < 10 {
		t.Error("the container saw no traffic")
	}
}
