package nettest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// VethOption changes a pair before it is made.
type VethOption func(*netlink.Veth)

// Queues gives both ends of a pair n receive and n transmit queues.
func Queues(n int) VethOption {
	return func(v *netlink.Veth) {
		v.NumRxQueues, v.NumTxQueues = n, n
		v.PeerNumRxQueues, v.PeerNumTxQueues = uint32(n), uint32(n)
	}
}

// Veth makes a pair of devices, one end in a and one in b, both up.
func Veth(t testing.TB, a *NS, aName string, b *NS, bName string, opts ...VethOption) {
	t.Helper()
	f, err := os.Open(b.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // an open descriptor would keep b alive
	v := netlink.NewVeth(netlink.NewLinkAttrs())
	v.Name, v.PeerName, v.PeerNamespace = aName, bName, netlink.NsFd(int(f.Fd()))
	for _, opt := range opts {
		opt(v)
	}
	a.link(t, v)
	if b.host {
		b.forget(t, bName)
	}
	a.Up(t, aName)
	b.Up(t, bName)
}

// link makes a device.
func (n *NS) link(t testing.TB, l netlink.Link) {
	t.Helper()
	n.do(t, "make "+l.Type()+" "+l.Attrs().Name, func() error { return netlink.LinkAdd(l) })
	if n.host {
		n.forget(t, l.Attrs().Name)
	}
}

// forget removes a device at the end of the test, for namespaces that outlive it.
func (n *NS) forget(t testing.TB, dev string) {
	t.Cleanup(func() {
		err := n.try(func() error {
			l, err := netlink.LinkByName(dev)
			if err != nil {
				return err
			}
			return netlink.LinkDel(l)
		})
		if gone := (netlink.LinkNotFoundError{}); err != nil && !errors.As(err, &gone) && n.HasLink(t, dev) {
			t.Errorf("delete %s: %v", dev, err)
		}
	})
}

// change does something to a device.
func (n *NS) change(t testing.TB, what, dev string, fn func(netlink.Link) error) {
	t.Helper()
	n.do(t, what+" "+dev, func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		return fn(l)
	})
}

// Up sets a device up.
func (n *NS) Up(t testing.TB, dev string) {
	t.Helper()
	n.change(t, "set up", dev, netlink.LinkSetUp)
}

// Down sets a device down.
func (n *NS) Down(t testing.TB, dev string) {
	t.Helper()
	n.change(t, "set down", dev, netlink.LinkSetDown)
}

// MTU sets a device's MTU.
func (n *NS) MTU(t testing.TB, dev string, mtu int) {
	t.Helper()
	n.change(t, "set MTU of", dev, func(l netlink.Link) error { return netlink.LinkSetMTU(l, mtu) })
}

// Enslave makes a device a port of a bridge.
func (n *NS) Enslave(t testing.TB, dev, bridge string) {
	t.Helper()
	n.change(t, "enslave", dev, func(l netlink.Link) error {
		master, err := netlink.LinkByName(bridge)
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(l, master)
	})
}

// DelLink deletes a device.
func (n *NS) DelLink(t testing.TB, dev string) {
	t.Helper()
	n.change(t, "delete", dev, netlink.LinkDel)
}

// Addr gives a device an address such as 198.18.0.1/24.
func (n *NS) Addr(t testing.TB, dev, cidr string) {
	t.Helper()
	ip, _, err := net.ParseCIDR(cidr)
	if err != nil {
		t.Fatal(err)
	}
	if n.IP == "" {
		n.IP = ip.String()
	}
	n.change(t, "add address "+cidr+" to", dev, func(l netlink.Link) error {
		addr, err := netlink.ParseAddr(cidr)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(l, addr)
	})
}

// Route sends what goes to dst, a prefix or "default", to the router via. Routes of the host's namespace are not removed at
// the end, except with their device.
func (n *NS) Route(t testing.TB, dst, via string) {
	t.Helper()
	if dst == "default" {
		dst = "0.0.0.0/0"
	}
	_, prefix, err := net.ParseCIDR(dst)
	if err != nil {
		t.Fatal(err)
	}
	n.do(t, "route "+dst+" via "+via, func() error {
		return netlink.RouteAdd(&netlink.Route{Dst: prefix, Gw: net.ParseIP(via)})
	})
}

// Bridge makes a bridge that is up.
func (n *NS) Bridge(t testing.TB, name string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	n.link(t, &netlink.Bridge{LinkAttrs: attrs})
	n.Up(t, name)
}

// Dummy makes a device that leads nowhere, and sets it up.
func (n *NS) Dummy(t testing.TB, name string) {
	t.Helper()
	n.do(t, "make "+name, func() error { return addDummy(name) })
	if n.host {
		n.forget(t, name)
	}
	n.Up(t, name)
}

// Devices makes many devices at once, d0 to d(count-1), and leaves them down.
func (n *NS) Devices(t testing.TB, count int) {
	t.Helper()
	if n.host {
		t.Fatal("not in the host's namespace")
	}
	n.do(t, "make devices", func() error {
		for i := range count {
			if err := addDummy(fmt.Sprintf("d%d", i)); err != nil {
				return err
			}
		}
		return nil
	})
}

// addDummy makes do with an ifb device, which loses packets just as well, where the kernel has no dummy one.
func addDummy(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}); err == nil {
		return nil
	}
	if err := netlink.LinkAdd(&netlink.Ifb{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("add %s: %w", name, err)
	}
	return nil
}

// HasLink tells whether a device exists.
func (n *NS) HasLink(t testing.TB, dev string) bool {
	t.Helper()
	err := n.try(func() error {
		_, err := netlink.LinkByName(dev)
		return err
	})
	if gone := (netlink.LinkNotFoundError{}); err != nil && !errors.As(err, &gone) {
		t.Fatal(err)
	}
	return err == nil
}

// WaitNoLink waits until a device is gone. The near end of a pair goes with the namespace of the far end, so this shows
// whether anything still keeps that one alive: an inode would not, as the next namespace gets it again.
func (n *NS) WaitNoLink(t testing.TB, dev string, within time.Duration) {
	t.Helper()
	for end := time.Now().Add(within); n.HasLink(t, dev); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s still exists after %v", dev, within)
		}
	}
}
