package netns_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

// mountFolder is where New of nettest mounted n.
func mountFolder(n *nettest.NS) []string { return []string{filepath.Dir(n.Path)} }

func TestVisitGoesInsideAndBack(t *testing.T) {
	process, mounted := nettest.WithProcess(t), nettest.New(t)
	found := discover(t, &netns.Discovery{Named: mountFolder(mounted)})
	withVisitor(t, netns.VisitorOptions{}, func(v *netns.Visitor) {
		home := here(t)
		cookies := map[uint64]bool{}
		for range 2 {
			for _, n := range []*nettest.NS{process, mounted} {
				ran := false
				err := v.Visit(find(t, found, n), func(view *netns.View) {
					ran = true
					if here(t).Ino != n.Ino || !view.Entered || view.Namespace.Ino != n.Ino || view.Cookie == 0 {
						t.Errorf("%s: inside %v, view %+v", n.Path, here(t), view)
					}
					cookies[view.Cookie] = true
					if b, err := view.NetFile("netstat"); err != nil || !strings.HasPrefix(string(b), "TcpExt: ") {
						t.Errorf("netstat: %.20q, %v", b, err)
					}
				})
				if err != nil || !ran || here(t) != home {
					t.Errorf("%s: error %v, ran %v, then in %v instead of %v", n.Path, err, ran, here(t), home)
				}
			}
		}
		if len(cookies) != 2 {
			t.Errorf("cookies %v of two namespaces", cookies)
		}
	})
}

// TestVisitReadsTheNamespaceNotTheHost holds what a thread gets wrong that reads /proc/net: files and sysctls are those of
// the namespace. What was read stays as it was for the rest of the visit.
func TestVisitReadsTheNamespaceNotTheHost(t *testing.T) {
	n := nettest.New(t)
	n.Sysctl(t, "net.ipv4.tcp_reordering", "77")
	n.Dummy(t, "only-here")
	withVisitor(t, netns.VisitorOptions{}, func(v *netns.Visitor) {
		err := v.Visit(netns.NewNamespace(keyOf(t, n.Path), n.Path), func(view *netns.View) {
			if b, err := view.Sysctl("ipv4/tcp_reordering"); err != nil || string(b) != "77\n" {
				t.Errorf("sysctl %q, %v", b, err)
			}
			if b, err := view.NetFile("dev"); err != nil || !strings.Contains(string(b), "only-here:") {
				t.Errorf("dev %q, %v", b, err)
			}
			if b, err := view.ProcFile("softirqs"); err != nil || !strings.Contains(string(b), "NET_RX") {
				t.Errorf("softirqs %q, %v", b, err)
			}
			if _, err := view.Sysctl("ipv4/no_such"); !errors.Is(err, netns.ErrUnsupported) {
				t.Errorf("sysctl that is not there: %v", err)
			}
			if _, err := view.NetFile("no_such"); !errors.Is(err, unix.ENOENT) || errors.Is(err, netns.ErrGone) {
				t.Errorf("file that is not there: %v", err)
			}
			if err := os.WriteFile("/proc/sys/net/ipv4/tcp_reordering", []byte("78"), 0); err != nil {
				t.Error(err)
			}
			if b, err := view.Sysctl("ipv4/tcp_reordering"); err != nil || string(b) != "77\n" {
				t.Errorf("sysctl read again: %q, %v", b, err)
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestVisitGone: a namespace that ended is reported so, and nothing runs, whatever the way into it was.
func TestVisitGone(t *testing.T) {
	process, mounted, other := nettest.WithProcess(t), nettest.New(t), nettest.WithProcess(t)
	found := discover(t, &netns.Discovery{Named: mountFolder(mounted)})
	process.Delete(t)
	mounted.Delete(t)
	gone := map[string]*netns.Namespace{
		"of a process": find(t, found, process),
		"mounted":      find(t, found, mounted),
		// What remains of it when its process's number went to a process elsewhere.
		"process number reused": netns.NewNamespace(netns.Key{Dev: keyOf(t, other.Path).Dev, Ino: 1}, "", other.Pid),
		"no way left":           netns.NewNamespace(netns.Key{Dev: 1, Ino: 1}, ""),
	}
	withVisitor(t, netns.VisitorOptions{}, func(v *netns.Visitor) {
		home := here(t)
		for name, n := range gone {
			err := v.Visit(n, func(*netns.View) { t.Errorf("%s: entered", name) })
			if !errors.Is(err, netns.ErrGone) || here(t) != home {
				t.Errorf("%s: error %v", name, err)
			}
		}
	})
}

// TestVisitReplaced: another namespace at the same mount is not taken for the one that was found.
func TestVisitReplaced(t *testing.T) {
	old, young := nettest.New(t), nettest.New(t)
	n := find(t, discover(t, &netns.Discovery{Named: mountFolder(old)}), old)
	old.Delete(t)
	bind(t, young.Path, old.Path)
	withVisitor(t, netns.VisitorOptions{}, func(v *netns.Visitor) {
		if err := v.Visit(n, func(*netns.View) { t.Error("entered") }); !errors.Is(err, netns.ErrGone) {
			t.Errorf("error %v", err)
		}
	})
}

// TestVisitByAnotherProcess: a namespace outlives the process that it was found by.
func TestVisitByAnotherProcess(t *testing.T) {
	first := nettest.WithProcess(t)
	second := child(t, first)
	n := find(t, discover(t, &netns.Discovery{}), first)
	if n.Processes != 2 {
		t.Fatalf("%d processes", n.Processes)
	}
	key := keyOf(t, first.Path)
	first.Delete(t)
	withVisitor(t, netns.VisitorOptions{}, func(v *netns.Visitor) {
		ran := false
		if err := v.Visit(n, func(*netns.View) { ran = here(t) == key }); err != nil || !ran {
			t.Errorf("by process %d: error %v, ran inside %v", second, err, ran)
		}
	})
}

// TestWhatIsNoNetns: a namespace of another type at a mount is none to visit.
func TestWhatIsNoNetns(t *testing.T) {
	nettest.Root(t)
	dir := t.TempDir()
	bind(t, "/proc/self/ns/uts", filepath.Join(dir, "uts"))
	if has(discover(t, &netns.Discovery{Named: []string{dir}}), keyOf(t, "/proc/self/ns/uts").Ino) {
		t.Error("it was found")
	}
}

// TestNothingPins: a namespace that was visited ends at once when its last process does, although the visitor lives on and
// follows the host's devices.
func TestNothingPins(t *testing.T) {
	for name, make := range map[string]func(testing.TB) *nettest.NS{"process": nettest.WithProcess, "mounted": nettest.New} {
		t.Run(name, func(t *testing.T) {
			n := make(t)
			dev := nettest.Unique()
			nettest.Veth(t, nettest.Host(), dev, n, "eth0")
			d := &netns.Discovery{}
			if n.Pid == 0 {
				d.Named = mountFolder(n)
			}
			found := discover(t, d)
			withVisitor(t, netns.VisitorOptions{}, func(v *netns.Visitor) {
				if err := v.Visit(found.Namespaces[0], func(view *netns.View) { // the host's
					if _, _, err := view.Links(); err != nil {
						t.Error(err)
					}
				}); err != nil {
					t.Error(err)
				}
				if err := v.Visit(find(t, found, n), func(view *netns.View) {
					readAll(t, view)
				}); err != nil {
					t.Error(err)
				}
				n.Delete(t)
				nettest.Host().WaitNoLink(t, dev, 10*time.Second)
			})
		})
	}
}

// readAll reads all that a view has, so that whatever it may keep is there.
func readAll(t *testing.T, view *netns.View) {
	t.Helper()
	links, _, err := view.Links()
	if err != nil || len(links) < 2 {
		t.Errorf("%d links, %v", len(links), err)
	}
	for _, name := range []string{"netstat", "snmp", "dev", "softnet_stat"} {
		if _, err := view.NetFile(name); err != nil {
			t.Error(err)
		}
	}
	if _, err := view.Conntrack(); err != nil && !errors.Is(err, netns.ErrUnsupported) {
		t.Error(err)
	}
	if _, _, err := view.Qdiscs(); err != nil {
		t.Error(err)
	}
	if _, err := view.Steering(); err != nil && !errors.Is(err, netns.ErrUnsupported) {
		t.Error(err)
	}
	if _, err := view.Sysctl("ipv4/tcp_reordering"); err != nil {
		t.Error(err)
	}
}
