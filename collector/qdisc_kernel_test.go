package collector

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vethexporter/vethexporter/internal/nettest"
)

// tcQdisc is an element of what tc -s -j qdisc prints.
type tcQdisc struct {
	Kind, Dev, Parent                                          string
	Root                                                       bool
	Bytes, Packets, Drops, Overlimits, Requeues, Backlog, Qlen float64
}

// tcQdiscs returns what tc prints of the namespace.
func tcQdiscs(t *testing.T, ns *nettest.NS) []tcQdisc {
	t.Helper()
	nettest.Tool(t, "tc")
	var all []tcQdisc
	if err := json.Unmarshal(ns.Exec(t, "tc", "-s", "-j", "qdisc", "show"), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// compareQdiscs checks that the scrape has every qdisc with a queue as tc prints it.
func compareQdiscs(t *testing.T, got samples, ns *nettest.NS) {
	t.Helper()
	name := got.name(t, ns)
	for _, q := range tcQdiscs(t, ns) {
		if q.Kind == "noqueue" {
			got.absent(t, `veth_qdisc_bytes_total{netns=%q,device=%q,`, name, q.Dev)
			continue
		}
		parent := q.Parent
		if q.Root {
			parent = "root"
		}
		for metric, want := range map[string]float64{
			"bytes_total": q.Bytes, "packets_total": q.Packets, "drops_total": q.Drops, "overlimits_total": q.Overlimits,
			"requeues_total": q.Requeues, "backlog_bytes": q.Backlog, "backlog_packets": q.Qlen,
		} {
			if v := got.value(t, "veth_qdisc_"+metric+`{netns=%q,device=%q,kind=%q,parent=%q}`, name, q.Dev, q.Kind, parent); v != want {
				t.Errorf("%s of %s %s = %v, tc says %v", metric, q.Dev, q.Kind, v, want)
			}
		}
	}
}

// echo starts a UDP echo in b, and returns a function that measures one round trip from a. A lost one counts as a second.
func echo(t *testing.T, a, b *nettest.NS) func() time.Duration {
	t.Helper()
	var server, client net.PacketConn
	var err error
	b.Do(t, func() { server, err = net.ListenPacket("udp4", b.IP+":7") })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	a.Do(t, func() { client, err = net.ListenPacket("udp4", a.IP+":0") })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(buf[:n], from)
		}
	}()
	var seq uint64
	return func() time.Duration {
		seq++
		request := binary.BigEndian.AppendUint64(nil, seq)
		start := time.Now()
		_ = client.SetDeadline(start.Add(time.Second))
		_, _ = client.WriteTo(request, server.LocalAddr())
		buf := make([]byte, 64)
		for {
			n, _, err := client.ReadFrom(buf)
			if err != nil || bytes.Equal(buf[:n], request) {
				return time.Since(start)
			}
		}
	}
}

// A shaper drops, holds back and delays; the estimate of the delay is what a round trip then takes.
func TestShaper(t *testing.T) {
	a, b := nettest.Pair(t)
	a.Exec(t, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", "10mbit", "burst", "32kb", "latency", "25ms")
	w := newWorld(t, []*Collector{newQdisc()}, a, b)

	roundTrip := echo(t, a, b)
	idle := roundTrip()
	done := make(chan int64)
	go func() {
		done <- nettest.TCPFlow(t, a, b, b.IP, nettest.FlowOptions{Duration: 2 * time.Second, Congestion: "reno"})
	}()
	time.Sleep(300 * time.Millisecond)
	var estimated, measured []float64
	for range 30 {
		got := w.scrape()
		estimated = append(estimated, got.value(t, `veth_qdisc_delay_seconds{netns=%q,device="eth0",kind="tbf",parent="root"}`, got.name(t, a)))
		measured = append(measured, roundTrip().Seconds())
	}
	<-done
	got := w.scrape()
	name := got.name(t, a)
	series := func(metric string) float64 {
		return got.value(t, "veth_qdisc_"+metric+`{netns=%q,device="eth0",kind="tbf",parent="root"}`, name)
	}
	if series("drops_total") == 0 || series("overlimits_total") == 0 {
		t.Errorf("drops %v, overlimits %v, want both above 0", series("drops_total"), series("overlimits_total"))
	}
	if rate, burst := series("rate_bytes_per_second"), series("burst_bytes"); rate != 1.25e6 || burst < 32<<10-64 || burst > 32<<10 {
		t.Errorf("rate %v, burst %v, want 1250000 and 32768", rate, burst)
	}
	slices.Sort(estimated)
	slices.Sort(measured)
	estimate, measure := estimated[len(estimated)/2], measured[len(measured)/2]
	t.Logf("round trip %v idle, %.4f s under load, estimated delay %.4f s", idle, measure, estimate)
	if measure < 0.005 || estimate < measure/2 || estimate > measure*2 {
		t.Errorf("estimated delay %.4f s, but a round trip takes %.4f s", estimate, measure)
	}
	compareQdiscs(t, got, a)
	got.absent(t, `veth_qdisc_bytes_total{netns=%q,device="eth0"`, got.name(t, b))
}

// A leaf of HTB has the rate of its class, and the delay that follows from it.
func TestClassOfLeaf(t *testing.T) {
	a, b := nettest.Pair(t)
	for _, command := range []string{
		"qdisc add dev eth0 root handle 1: htb default 10",
		"class add dev eth0 parent 1: classid 1:10 htb rate 1mbit burst 4kb",
		"qdisc add dev eth0 parent 1:10 pfifo limit 500",
	} {
		a.Exec(t, "tc", strings.Fields(command)...)
	}
	w := newWorld(t, []*Collector{newQdisc()}, a, b)
	nettest.UDPBurst(t, a, b.IP, 20000, 300)
	got := w.scrape()
	leaf := func(metric string) float64 {
		return got.value(t, "veth_qdisc_"+metric+`{netns=%q,device="eth0",kind="pfifo",parent="1:10"}`, got.name(t, a))
	}
	if rate, burst := leaf("rate_bytes_per_second"), leaf("burst_bytes"); rate != 125000 || burst < 4000 || burst > 4096 {
		t.Errorf("rate %v, burst %v, want 125000 and 4096", rate, burst)
	}
	if backlog, delay := leaf("backlog_bytes"), leaf("delay_seconds"); backlog == 0 || delay != backlog/125000 {
		t.Errorf("backlog %v, delay %v", backlog, delay)
	}
}

// Leaves that come and go in the middle of a dump shift the others, and the kernel does not notice. None may be there twice:
// scrape fails the test then.
func TestLeavesUnderChurn(t *testing.T) {
	ns := nettest.New(t)
	nettest.Veth(t, ns, "eth0", nettest.New(t), "eth0")
	var batch strings.Builder
	batch.WriteString("qdisc add dev eth0 root handle 1: htb\n")
	for i := 1; i <= 600; i++ {
		fmt.Fprintf(&batch, "class add dev eth0 parent 1: classid 1:%x htb rate 1mbit\nqdisc add dev eth0 parent 1:%x pfifo limit 10\n", i, i)
	}
	load := func(text string) {
		file := filepath.Join(t.TempDir(), "batch")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		ns.Exec(t, "tc", "-batch", file)
	}
	load(batch.String())
	w := newWorld(t, []*Collector{newQdisc()}, ns)
	stop, stopped := make(chan struct{}), make(chan struct{})
	change := strings.Repeat("qdisc del dev eth0 parent 1:1\nqdisc add dev eth0 parent 1:1 pfifo limit 9\n", 200)
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				load(change)
			}
		}
	}()
	for range 40 {
		w.scrape()
	}
	close(stop)
	<-stopped
}

// Only the leaf that is too slow drops, and the root shows the sum.
func TestLeaves(t *testing.T) {
	a, b := nettest.New(t), nettest.New(t)
	_, bIP := nettest.Connect(t, a, "eth0", b, "eth0", nettest.Queues(4))
	a.Exec(t, "tc", "qdisc", "replace", "dev", "eth0", "root", "handle", "1:", "mq")
	a.Exec(t, "tc", "qdisc", "replace", "dev", "eth0", "parent", "1:1", "tbf", "rate", "1mbit", "burst", "5kb", "limit", "10kb")
	for _, leaf := range []string{"1:2", "1:3", "1:4"} {
		a.Exec(t, "tc", "qdisc", "replace", "dev", "eth0", "parent", leaf, "pfifo", "limit", "1000")
	}
	nettest.UDPBurst(t, a, bIP, 20000, 3000)
	drained := func() bool {
		for _, q := range tcQdiscs(t, a) {
			if q.Backlog > 0 {
				return false
			}
		}
		return true
	}
	for range 100 {
		if drained() {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	got := newWorld(t, []*Collector{newQdisc()}, a, b).scrape()
	compareQdiscs(t, got, a)
	name := got.name(t, a)
	slow := got.value(t, `veth_qdisc_drops_total{netns=%q,device="eth0",kind="tbf",parent="1:1"}`, name)
	root := got.value(t, `veth_qdisc_drops_total{netns=%q,device="eth0",kind="mq",parent="root"}`, name)
	if slow == 0 || root != slow {
		t.Errorf("the slow leaf dropped %v, the root %v", slow, root)
	}
	for _, leaf := range []string{"1:2", "1:3", "1:4"} {
		if v := got.value(t, `veth_qdisc_drops_total{netns=%q,device="eth0",kind="pfifo",parent=%q}`, name, leaf); v != 0 {
			t.Errorf("leaf %s dropped %v", leaf, v)
		}
	}
	if v := got.value(t, `veth_qdisc_limit_packets{netns=%q,device="eth0",kind="pfifo",parent="1:2"}`, name); v != 1000 {
		t.Errorf("limit %v, want 1000", v)
	}
}
