package collector

import (
	"context"
	"fmt"

	"github.com/vethexporter/vethexporter/internal/metric"
	"github.com/vethexporter/vethexporter/internal/netns"
)

// ipCounters are what tells of packets that do not fit: the evidence beside the MTU audit.
var ipCounters = []snmpCounter{
	ipCounter("Ip", "FragOKs", "ip_frag_oks", "Packets fragmented", "Packets do not fit the device that they leave through; each costs twice."),
	ipCounter("Ip", "FragFails", "ip_frag_fails", "Packets dropped as they do not fit and must not be fragmented", "Path MTU discovery at work, or a black hole: then TCP timeouts grow at the sender."),
	ipCounter("Ip", "FragCreates", "ip_frag_creates", "Fragments made", "With a tunnel: its MTU does not fit the underlay, see veth_overlay_mtu_headroom_bytes."),
	ipCounter("Ip", "ReasmReqds", "ip_reasm_reqds", "Fragments received that need reassembly", "A peer, or a tunnel of one, fragments."),
	ipCounter("Ip", "ReasmOKs", "ip_reasm_oks", "Packets reassembled", "What got through in fragments."),
	ipCounter("Ip", "ReasmFails", "ip_reasm_fails", "Failed reassemblies", "Fragments are lost, or the fragment memory is full."),
	ipCounter("Icmp", "InDestUnreachs", "icmp_in_dest_unreachs", "ICMP messages of unreachable destinations received, among them fragmentation needed", "A hop or a host refuses packets."),
	ipCounter("Icmp", "OutDestUnreachs", "icmp_out_dest_unreachs", "ICMP messages of unreachable destinations sent, among them fragmentation needed", "With ip_frag_fails: this namespace tells senders that their packets do not fit."),
}

// snmpCounter is one value of /proc/net/snmp under the kernel's name.
type snmpCounter struct {
	table, kernel string
	def           *metric.Def
}

func ipCounter(table, kernel, name, help, meaning string) snmpCounter {
	return snmpCounter{table, kernel, &metric.Def{
		Name: "veth_" + name + "_total", Type: metric.Counter, Labels: []string{metric.NetnsLabel}, Meaning: meaning,
		Help: fmt.Sprintf("%s (%s %s).", help, table, kernel), Source: fmt.Sprintf("/proc/net/snmp %s %s", table, kernel),
	}}
}

// newIP returns the collector of each namespace's IPv4 counters.
func newIP() *Collector {
	c := &Collector{Name: "ip", Default: true}
	table := newNetTable()
	for _, counter := range ipCounters {
		c.Metrics = append(c.Metrics, counter.def)
		table.want(counter.table, counter.kernel, counter.def)
	}
	c.Netns = func(_ context.Context, v *netns.View, sink *metric.Sink) error {
		b, err := v.NetFile("snmp")
		if err != nil {
			return err
		}
		if err := table.read(b, func(def *metric.Def, value int64) { sink.Emit(def, float64(value)) }); err != nil {
			return parseError{fmt.Errorf("snmp: %w", err)}
		}
		return nil
	}
	return c
}
