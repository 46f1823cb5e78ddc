package nettest

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Nstat returns the counters that nstat prints, by its names, such as TcpExtTCPOFOQueue. Zeros are among them.
func (n *NS) Nstat(t testing.TB) map[string]uint64 {
	t.Helper()
	// -a and -s: neither subtract nor write the history file that all calls of a user share.
	out := n.Exec(t, "nstat", "-a", "-s", "-z", "--json")
	var doc struct{ Kernel map[string]uint64 }
	if err := json.Unmarshal(out, &doc); err != nil {
		t.Fatalf("nstat: %v", err)
	}
	return doc.Kernel
}

// IPLink is what ip tells of a device. Stats64 holds counters by ip's names, such as dropped.
type IPLink struct {
	Ifindex     int
	Ifname      string
	Flags       []string
	MTU         int
	Operstate   string
	Address     string
	Master      string
	Link        string
	LinkIndex   int  `json:"link_index"`
	LinkNetnsID *int `json:"link_netnsid"`
	LinkInfo    struct {
		Kind      string `json:"info_kind"`
		SlaveKind string `json:"info_slave_kind"`
	}
	NumTxQueues int `json:"num_tx_queues"`
	NumRxQueues int `json:"num_rx_queues"`
	Stats64     struct{ RX, TX map[string]uint64 }
}

// IPLink returns the namespace's devices as ip sees them.
func (n *NS) IPLink(t testing.TB) []IPLink {
	t.Helper()
	var links []IPLink
	if err := json.Unmarshal(n.Exec(t, "ip", "-s", "-s", "-j", "-d", "link"), &links); err != nil {
		t.Fatalf("ip link: %v", err)
	}
	return links
}

// IPLinkOf returns one device as ip sees it.
func (n *NS) IPLinkOf(t testing.TB, dev string) IPLink {
	t.Helper()
	for _, l := range n.IPLink(t) {
		if l.Ifname == dev {
			return l
		}
	}
	t.Fatalf("ip link: no device %s", dev)
	panic("unreachable")
}

// ConntrackStats returns the counters that conntrack -S prints, by its names, summed over CPUs.
func (n *NS) ConntrackStats(t testing.TB) map[string]uint64 {
	t.Helper()
	sum := map[string]uint64{}
	for _, field := range strings.Fields(string(n.Exec(t, "conntrack", "-S"))) {
		name, value, ok := strings.Cut(field, "=")
		if !ok || name == "cpu" {
			continue
		}
		v, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			t.Fatalf("conntrack -S: %v", err)
		}
		sum[name] += v
	}
	return sum
}

// ConntrackCount returns the number of connections that conntrack -C prints.
func (n *NS) ConntrackCount(t testing.TB) uint64 {
	t.Helper()
	count, err := strconv.ParseUint(strings.TrimSpace(string(n.Exec(t, "conntrack", "-C"))), 10, 64)
	if err != nil {
		t.Fatalf("conntrack -C: %v", err)
	}
	return count
}

// Delta returns what rose between two readings of Nstat or ConntrackStats, and by how much.
func Delta(before, after map[string]uint64) map[string]uint64 {
	rose := map[string]uint64{}
	for name, v := range after {
		if v > before[name] {
			rose[name] = v - before[name]
		}
	}
	return rose
}

// OpenFDs returns how many file descriptors this process has.
func OpenFDs() int { return entries("/proc/self/fd") - 1 } // one is open for the reading

// Threads returns how many threads this process has.
func Threads() int { return entries("/proc/self/task") }

func entries(dir string) int {
	list, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	return len(list)
}
