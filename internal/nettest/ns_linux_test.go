package nettest

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sentinel makes a pair into n and returns the device of its near end, which is there as long as n is.
func sentinel(t *testing.T, n *NS) (dev string) {
	t.Helper()
	dev = Unique()
	Veth(t, Host(), dev, n, "sentinel")
	return dev
}

func TestNamespaces(t *testing.T) {
	Root(t)
	dir := filepath.Join(tempDir(t), "netns")
	for name, make := range map[string]func(testing.TB) *NS{
		"New":         New,
		"Named":       func(t testing.TB) *NS { return Named(t, dir, "blue") },
		"WithProcess": WithProcess,
	} {
		t.Run(name, func(t *testing.T) {
			n := make(t)
			if n.Ino == 0 || n.Ino == Host().Ino {
				t.Errorf("inode %d, the host's is %d", n.Ino, Host().Ino)
			}
			if got := n.SysctlGet(t, "net.ipv6.conf.all.disable_ipv6"); got != "1" {
				t.Errorf("disable_ipv6 is %s", got)
			}
			dev := sentinel(t, n)
			n.Delete(t)
			n.Delete(t)
			Host().WaitNoLink(t, dev, 10*time.Second)
			if _, err := os.Stat(n.Path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s after Delete: %v", n.Path, err)
			}
		})
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder of named namespaces: %v", err)
	}
}

func TestWithProcessLivesThere(t *testing.T) {
	n := WithProcess(t)
	if n.Pid == 0 {
		t.Fatal("no process")
	}
	// Threads that ran other helpers end; the process must not end with any of them.
	for range 20 {
		n.SysctlGet(t, "net.ipv4.ip_forward")
	}
	if err := unix.Kill(n.Pid, 0); err != nil {
		t.Errorf("process: %v", err)
	}
	if got, err := inode(procPath(n.Pid)); err != nil || got != n.Ino {
		t.Errorf("process is in %d (%v), want %d", got, err, n.Ino)
	}
}

func TestDo(t *testing.T) {
	n := New(t)
	n.Do(t, func() {
		if got, err := inode("/proc/thread-self/ns/net"); err != nil || got != n.Ino {
			t.Errorf("inside %d (%v), want %d", got, err, n.Ino)
		}
	})
	if err := n.try(func() error { runtime.Goexit(); return nil }); !errors.Is(err, errExit) {
		t.Errorf("function that left: %v", err)
	}
	if got := string(n.Exec(t, "ip", "-br", "link")); !strings.HasPrefix(got, "lo ") || strings.Count(got, "\n") != 1 {
		t.Errorf("devices inside:\n%s", got)
	}
	if _, err := n.TryExec(t, "ip", "link", "show", "nosuch"); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("failing program: %v", err)
	}
}

func TestSysctlAndSysfs(t *testing.T) {
	n := New(t)
	host := Host().SysctlGet(t, "net.ipv4.tcp_reordering")
	n.Sysctl(t, "net.ipv4.tcp_reordering", "7")
	if got := n.SysctlGet(t, "net/ipv4/tcp_reordering"); got != "7" {
		t.Errorf("inside: %s", got)
	}
	if got := Host().SysctlGet(t, "net.ipv4.tcp_reordering"); got != host {
		t.Errorf("the host's went from %s to %s", host, got)
	}
	t.Run("host", func(t *testing.T) { Host().Sysctl(t, "net.ipv4.tcp_fin_timeout", "59") })
	if got := Host().SysctlGet(t, "net.ipv4.tcp_fin_timeout"); got == "59" {
		t.Error("the host's value was not restored")
	}

	n.Dummy(t, "d.0")
	n.Sysctl(t, "net/ipv4/conf/d.0/rp_filter", "2")
	const mask = "d.0/queues/rx-0/rps_cpus"
	n.Sysfs(t, mask, "1")
	if got := n.SysfsGet(t, mask); strings.Trim(got, "0,") != "1" {
		t.Errorf("mask %q", got)
	}
}

func TestLinks(t *testing.T) {
	a, b := New(t), New(t)
	Veth(t, a, "eth0", b, "eth0", Queues(2))
	b.Bridge(t, "br0")
	b.Enslave(t, "eth0", "br0")
	a.MTU(t, "eth0", 1400)
	a.Dummy(t, "spare")
	a.Down(t, "spare")
	a.DelLink(t, "spare")
	subnet := Subnet()
	a.Addr(t, "eth0", subnet+".1/24")
	b.Addr(t, "br0", subnet+".2/24")
	if a.IP != subnet+".1" {
		t.Errorf("address %s", a.IP)
	}
	reach(t, a, b)

	near := a.IPLinkOf(t, "eth0")
	if near.MTU != 1400 || near.NumRxQueues != 2 || near.LinkInfo.Kind != "veth" || near.Stats64.TX["packets"] == 0 {
		t.Errorf("near end: %+v", near)
	}
	far := b.IPLinkOf(t, "eth0")
	if far.Master != "br0" || far.NumTxQueues != 2 || near.LinkIndex != far.Ifindex {
		t.Errorf("far end: %+v", far)
	}
	if a.HasLink(t, "spare") {
		t.Error("deleted device exists")
	}
}

func TestHostLinksGo(t *testing.T) {
	Root(t)
	near, far := Unique(), Unique()
	t.Run("make", func(t *testing.T) {
		Veth(t, Host(), near, New(t), "eth0")
		Veth(t, New(t), "eth0", Host(), far)
	})
	if Host().HasLink(t, near) || Host().HasLink(t, far) {
		t.Error("devices outlived their test")
	}
}

func TestDevices(t *testing.T) {
	n := New(t)
	n.Devices(t, 200)
	if got := len(n.IPLink(t)); got != 201 {
		t.Errorf("%d devices", got)
	}
}

func TestTopologies(t *testing.T) {
	a, b := Pair(t)
	reach(t, a, b)
	c, r, d := Routed(t)
	reach(t, c, d)
	if a.IP == c.IP {
		t.Errorf("two topologies share %s", a.IP)
	}
	if got := r.Nstat(t)["IpForwDatagrams"]; got == 0 {
		t.Error("nothing forwarded")
	}
	if got := Host().IPLink(t)[0].Ifname; got != "lo" {
		t.Errorf("the host's first device is %s", got)
	}
}

// reach fails unless a datagram of a arrives at b.
func reach(t *testing.T, a, b *NS) {
	t.Helper()
	var server net.PacketConn
	b.Do(t, func() {
		var err error
		if server, err = net.ListenPacket("udp4", b.IP+":0"); err != nil {
			t.Fatal(err)
		}
	})
	defer server.Close()
	_ = server.SetDeadline(time.Now().Add(5 * time.Second))
	a.Do(t, func() {
		client, err := net.Dial("udp4", server.LocalAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if _, err := client.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	})
	if _, from, err := server.ReadFrom(make([]byte, 1)); err != nil || !strings.HasPrefix(from.String(), a.IP) {
		t.Errorf("%s to %s: from %v, %v", a.IP, b.IP, from, err)
	}
}

func TestProcessNumbers(t *testing.T) {
	before := OpenFDs()
	f, err := os.Open("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := OpenFDs(); got != before+1 {
		t.Errorf("%d descriptors, then %d", before, got)
	}
	if Threads() < 1 {
		t.Error("no threads")
	}
}
