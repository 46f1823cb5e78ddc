package netns_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

// newTable makes a table of n, as if that were the host's namespace.
func newTable(t *testing.T, n *nettest.NS) *netns.LinkTable {
	t.Helper()
	var table *netns.LinkTable
	n.Do(t, func() {
		var err error
		if table, err = netns.NewLinkTable(); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(table.Close)
	return table
}

func read(t *testing.T, table *netns.LinkTable) []netns.Link {
	t.Helper()
	links, err := table.Read()
	if err != nil {
		t.Fatal(err)
	}
	return links
}

// rename gives a device another name. The kernel wants it down for that.
func rename(t *testing.T, n *nettest.NS, from, to string) {
	t.Helper()
	n.Down(t, from)
	n.Do(t, func() {
		l, err := netlink.LinkByName(from)
		if err == nil {
			err = netlink.LinkSetName(l, to)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}

// move takes a device of one namespace to another.
func move(t *testing.T, from *nettest.NS, dev string, to *nettest.NS) {
	t.Helper()
	f, err := os.Open(to.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	from.Do(t, func() {
		l, err := netlink.LinkByName(dev)
		if err == nil {
			err = netlink.LinkSetNsFd(l, int(f.Fd()))
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}

// TestLinkTableFollows: each change is visible at the next read, through events alone: only the first read is a dump.
func TestLinkTableFollows(t *testing.T) {
	n, other := nettest.New(t), nettest.New(t)
	table := newTable(t, n)
	if !table.Dumps() {
		t.Error("a new table does not want to dump")
	}
	sameAsIP(t, n, func() []netns.Link { return read(t, table) })
	for _, step := range []struct {
		name   string
		change func()
	}{
		{"create", func() { n.Dummy(t, "d0") }},
		{"bridge", func() { n.Bridge(t, "br0") }},
		{"enslave", func() { n.Enslave(t, "d0", "br0") }},
		{"MTU", func() { n.MTU(t, "d0", 1400) }},
		{"down", func() { n.Down(t, "d0") }},
		{"rename", func() { rename(t, n, "d0", "renamed") }},
		{"up", func() { n.Up(t, "renamed") }},
		{"pair inside", func() { nettest.Veth(t, n, "v0", n, "v1") }},
		{"peer moves away", func() {
			move(t, n, "v1", other)
			other.Up(t, "v1")
			// The kernel tells nobody that a peer moved. It shows with the next event of this end, here that of the carrier,
			// which comes in its own time.
			eventually(t, "the carrier of v0", func() bool {
				return slices.ContainsFunc(read(t, table), func(l netns.Link) bool { return l.Name == "v0" && l.PeerNSID >= 0 })
			})
		}},
		{"pair to elsewhere", func() { nettest.Veth(t, n, "w0", other, "w1") }},
		{"peer goes", func() { other.DelLink(t, "w1") }},
		{"traffic", func() { n.Exec(t, "ip", "addr", "add", nettest.Subnet()+".1/24", "dev", "v0") }},
		{"release", func() { n.Exec(t, "ip", "link", "set", "renamed", "nomaster") }},
		{"delete", func() { n.DelLink(t, "renamed") }},
		{"many", func() { n.Devices(t, 50) }},
	} {
		t.Run(step.name, func(t *testing.T) {
			step.change()
			if table.Dumps() {
				t.Error("events were lost")
			}
			sameAsIP(t, n, func() []netns.Link { return read(t, table) })
		})
	}
}

// TestLinkTableRecovers: when more changes came than the kernel keeps events of, the next read is right all the same, and
// after it events suffice again.
func TestLinkTableRecovers(t *testing.T) {
	n := nettest.New(t)
	n.Devices(t, 100)
	table := newTable(t, n)
	sameAsIP(t, n, func() []netns.Link { return read(t, table) })
	if err := table.ShrinkEvents(); err != nil {
		t.Fatal(err)
	}
	n.Do(t, func() {
		for i := range 100 {
			name := fmt.Sprintf("d%d", i)
			l, err := netlink.LinkByName(name)
			if err != nil {
				t.Fatal(err)
			}
			switch i % 3 {
			case 0:
				err = netlink.LinkSetMTU(l, 1000+i)
			case 1:
				err = netlink.LinkDel(l)
			default:
				err = netlink.LinkSetName(l, fmt.Sprintf("new%d", i))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if lost, err := table.LostEvents(); err != nil || !lost {
			t.Fatalf("no event was lost: %v, %v", lost, err)
		}
	})
	sameAsIP(t, n, func() []netns.Link { return read(t, table) })
	if table.Dumps() {
		t.Error("the table wants to dump again")
	}
	n.MTU(t, "d0", 999)
	sameAsIP(t, n, func() []netns.Link { return read(t, table) })
}

// TestLinkTableDuringChurn: what is there all the time is there in each read, once.
func TestLinkTableDuringChurn(t *testing.T) {
	n := nettest.New(t)
	n.Devices(t, 50)
	lasting := read(t, newTable(t, n))
	table := newTable(t, n)
	churning(t, n, func() {
		for range 100 {
			links := read(t, table)
			if !slices.IsSortedFunc(links, func(a, b netns.Link) int { return int(a.Index - b.Index) }) {
				t.Fatal("not ordered by index")
			}
			for _, want := range lasting {
				at, ok := netns.FindLink(links, want.Index)
				if !ok || links[at].Name != want.Name {
					t.Fatalf("%s is missing among %d", want.Name, len(links))
				}
			}
		}
	})
	eventually(t, "the same devices as before", func() bool { return len(read(t, table)) == len(lasting) })
}
