package netns_test

import (
	"os/exec"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

// onThread runs fn on a locked thread that ends with it. fn may fail the test, but not stop it.
func onThread(fn func()) {
	var wg sync.WaitGroup
	wg.Add(1)
	netns.OnThread(func() {
		defer wg.Done()
		fn()
	})
	wg.Wait()
}

// withVisitor runs fn with a visitor, on its thread.
func withVisitor(t *testing.T, o netns.VisitorOptions, fn func(*netns.Visitor)) {
	t.Helper()
	o.Proc, o.Sys = "/proc", "/sys"
	onThread(func() {
		v, err := netns.NewVisitor(o)
		if err != nil {
			t.Error(err)
			return
		}
		defer v.Close()
		fn(v)
	})
}

// discover fails the test if d does, or tells of anything that could not be looked at.
func discover(t *testing.T, d *netns.Discovery) *netns.Found {
	t.Helper()
	if d.Proc == "" {
		d.Proc = "/proc"
	}
	found, err := d.Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range found.Errs {
		t.Errorf("discovery: %v", err)
	}
	return found
}

// find returns the one namespace that was found with the inode of n, and fails the test if there are more or none.
func find(t *testing.T, found *netns.Found, n *nettest.NS) *netns.Namespace {
	t.Helper()
	var got *netns.Namespace
	for _, f := range found.Namespaces {
		if f.Ino == n.Ino {
			if got != nil {
				t.Fatalf("%s is there twice: as %s and %s", n.Path, got.Name, f.Name)
			}
			got = f
		}
	}
	if got == nil {
		t.Fatalf("%s (inode %d) was not found", n.Path, n.Ino)
	}
	return got
}

// has tells whether a namespace of that inode was found.
func has(found *netns.Found, ino uint64) bool {
	for _, f := range found.Namespaces {
		if f.Ino == ino {
			return true
		}
	}
	return false
}

// keyOf returns the key of what path leads to.
func keyOf(t *testing.T, path string) netns.Key {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return netns.Key{Dev: st.Dev, Ino: st.Ino}
}

// here returns the key of the namespace that the calling thread is in.
func here(t *testing.T) netns.Key {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		t.Error(err)
	}
	return netns.Key{Dev: st.Dev, Ino: st.Ino}
}

// child starts a process inside n that lives until the test ends.
func child(t *testing.T, n *nettest.NS) (pid int) {
	t.Helper()
	cmd := exec.Command(nettest.Tool(t, "sleep"), "infinity")
	n.Do(t, func() {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// eventually fails the test if cond does not become true in good time.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not in 10 s", what)
		}
	}
}
