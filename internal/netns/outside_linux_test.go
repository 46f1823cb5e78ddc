package netns_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

// TestVisitFromOutside drops the capabilities of this thread only: what /proc/PID/net shows is there, and is what the view
// from inside says.
func TestVisitFromOutside(t *testing.T) {
	a, b := nettest.WithProcess(t), nettest.New(t)
	aIP, _ := nettest.Connect(t, a, "eth0", b, "eth0")
	nettest.UDPBurst(t, b, aIP, 1000, 50)
	found := discover(t, &netns.Discovery{Named: mountFolder(b)})
	inside := map[string]netns.Link{}
	var stats []byte
	withVisitor(t, netns.VisitorOptions{}, func(v *netns.Visitor) {
		if err := v.Visit(find(t, found, a), func(view *netns.View) {
			links, _, err := view.Links()
			if err != nil {
				t.Error(err)
			}
			for _, l := range links {
				inside[l.Name] = l
			}
			stats, _ = view.NetFile("snmp")
			stats = append([]byte(nil), stats...)
		}); err != nil {
			t.Error(err)
		}
	})
	if inside["eth0"].Counters[netns.ReceivePackets] < 50 {
		t.Fatalf("inside: %+v", inside)
	}

	withVisitor(t, netns.VisitorOptions{}, func(v *netns.Visitor) {
		dropCapabilities(t, unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN)
		ran := false
		err := v.Visit(find(t, found, a), func(view *netns.View) {
			ran = true
			if view.Entered || view.Cookie != 0 {
				t.Errorf("view %+v", view)
			}
			links, capped, err := view.Links()
			if err != nil || capped || len(links) != len(inside) {
				t.Errorf("%d links, capped %v, error %v", len(links), capped, err)
			}
			for _, l := range links {
				want := inside[l.Name]
				for i := range l.Counted {
					if l.Counters[i] != want.Counters[i] {
						t.Errorf("%s: counter %d is %d, inside %d", l.Name, i, l.Counters[i], want.Counters[i])
					}
				}
				if l.Counted != netns.TransmitDropped+1 {
					t.Errorf("%s: %d counters", l.Name, l.Counted)
				}
			}
			got, err := view.NetFile("snmp")
			if diff := cmp.Diff(string(stats), string(got)); err != nil || diff != "" {
				t.Errorf("snmp: %v (-inside +outside)\n%s", err, diff)
			}
			if _, err := view.Sysctl("ipv4/tcp_reordering"); !errors.Is(err, netns.ErrDenied) {
				t.Errorf("sysctl: %v", err)
			}
			if _, err := view.Conntrack(); err != nil && !errors.Is(err, netns.ErrDenied) {
				t.Errorf("conntrack: %v", err)
			}
		})
		if !ran || !errors.Is(err, netns.ErrDenied) {
			t.Errorf("namespace with a process: ran %v, error %v", ran, err)
		}
		err = v.Visit(find(t, found, b), func(*netns.View) { t.Error("a namespace without a process was entered") })
		if !errors.Is(err, netns.ErrDenied) {
			t.Errorf("namespace without a process: %v", err)
		}
	})

	// Known by its number only, and that process is gone.
	n := find(t, found, a)
	a.Delete(t)
	withVisitor(t, netns.VisitorOptions{}, func(v *netns.Visitor) {
		dropCapabilities(t, unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN)
		err := v.Visit(n, func(*netns.View) { t.Error("entered after the end") })
		if !errors.Is(err, netns.ErrGone) && !errors.Is(err, netns.ErrDenied) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// dropCapabilities takes capabilities from the calling thread. The thread must end thereafter.
func dropCapabilities(t *testing.T, capabilities ...int) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Error(err)
	}
	for _, c := range capabilities {
		data[c/32].Effective &^= 1 << (c % 32)
		data[c/32].Permitted &^= 1 << (c % 32)
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		t.Error(err)
	}
}

// TestWithoutPtrace: where the kernel shows no ns/net of other processes, namespaces are told apart by their files in procfs,
// and read there.
func TestWithoutPtrace(t *testing.T) {
	a, b := nettest.WithProcess(t), nettest.WithProcess(t)
	second := child(t, a)
	aIP, _ := nettest.Connect(t, a, "eth0", b, "eth0")
	nettest.UDPBurst(t, b, aIP, 1000, 50)
	files := map[uint64]*nettest.NS{}
	for _, n := range []*nettest.NS{a, b} {
		var st unix.Stat_t
		n.Do(t, func() {
			if err := unix.Stat("/proc/thread-self/net/netstat", &st); err != nil {
				t.Fatal(err)
			}
		})
		files[st.Ino] = n
	}
	onThread(func() {
		dropCapabilities(t, unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SYS_PTRACE)
		found, err := (&netns.Discovery{Proc: "/proc"}).Discover(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		if found.Unidentified < 2 || !found.HostKnown || has(found, a.Ino) {
			t.Errorf("%d not identified, host known %v, inode shown %v", found.Unidentified, found.HostKnown, has(found, a.Ino))
		}
		v, err := netns.NewVisitor(netns.VisitorOptions{Proc: "/proc", Sys: "/sys"})
		if err != nil {
			t.Error(err)
			return
		}
		defer v.Close()
		for _, n := range found.Namespaces {
			ns := files[n.Ino]
			if ns == nil {
				continue
			}
			delete(files, n.Ino)
			if !strings.HasPrefix(n.Name, "procfs:") || n.Inode() != "" || n.Processes != map[bool]int{true: 2, false: 1}[ns == a] {
				t.Errorf("%s (with %d): %+v", ns.Path, second, n)
			}
			packets := uint64(0)
			err := v.Visit(n, func(view *netns.View) {
				links, _, err := view.Links()
				if err != nil {
					t.Error(err)
				}
				for _, l := range links {
					packets += l.Counters[netns.ReceivePackets]
				}
			})
			if !errors.Is(err, netns.ErrDenied) || ns == a && packets < 50 {
				t.Errorf("%s: error %v, %d packets", ns.Path, err, packets)
			}
		}
	})
	for _, n := range files {
		t.Errorf("%s was not found", n.Path)
	}
}

// TestOddDeviceNamesFromOutside: the kernel takes any bytes for a device's name. Two names that are no UTF-8 must not become
// one, and their order is always the same.
func TestOddDeviceNamesFromOutside(t *testing.T) {
	n := nettest.WithProcess(t)
	for _, name := range []string{"a\xff", "a\xfe", "b", "\xff\xfe\xfd"} {
		n.Dummy(t, name)
	}
	found := discover(t, &netns.Discovery{})
	var first []string
	for range 3 {
		withVisitor(t, netns.VisitorOptions{}, func(v *netns.Visitor) {
			dropCapabilities(t, unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN)
			_ = v.Visit(find(t, found, n), func(view *netns.View) {
				links, _, err := view.Links()
				if err != nil {
					t.Error(err)
				}
				var names []string
				for _, l := range links {
					names = append(names, l.Name)
				}
				if first == nil {
					first = names
				}
				if !slices.Equal(names, first) {
					t.Errorf("devices %q, before %q", names, first)
				}
			})
		})
	}
	slices.Sort(first)
	if got := slices.Compact(slices.Clone(first)); len(got) != len(n.IPLink(t)) {
		t.Errorf("devices %q", first)
	}
}
