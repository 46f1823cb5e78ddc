package nettest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vethexporter/vethexporter/internal/netns"
)

// NS is a network namespace. Its loopback is up, its IPv6 off unless the test turns it on with Sysctl: neighbour discovery
// would add packets that no test asked for. Forwarding is off, whatever the node's own setting.
type NS struct {
	Path string // leads to it: a bind mount, or /proc/PID/ns/net
	Ino  uint64
	Pid  int    // of the process that makes it live; 0 if only a mount does
	IP   string // the first address that Addr gave it, without the prefix length

	host   bool
	remove func() error // nil if it is not ours
}

// New makes a namespace that no process lives in, kept by a bind mount in a private folder.
func New(t testing.TB) *NS {
	t.Helper()
	Root(t)
	return mounted(t, filepath.Join(tempDir(t), "net"))
}

// Named makes a namespace without a process that is mounted at dir/name, as `ip netns add` does it in /run/netns.
func Named(t testing.TB, dir, name string) *NS {
	t.Helper()
	Root(t)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		// Another test may have put something there meanwhile, then the folder stays.
		t.Cleanup(func() { _ = os.Remove(dir) })
	}
	return mounted(t, filepath.Join(dir, name))
}

// WithProcess makes a namespace that a process of its own lives in, and nothing else keeps.
func WithProcess(t testing.TB) *NS {
	t.Helper()
	Root(t)
	cmd := exec.Command(Tool(t, "sleep"), "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	p := Start(t, cmd)
	n := &NS{Pid: cmd.Process.Pid, Path: procPath(cmd.Process.Pid), remove: p.Kill}
	n.setUp(t)
	return n
}

// Host returns the namespace that the test itself runs in.
func Host() *NS {
	n := &NS{Path: "/proc/self/ns/net", host: true}
	n.Ino, _ = inode(n.Path)
	return n
}

func procPath(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

// mounted makes a namespace and mounts it on a new file.
func mounted(t testing.TB, path string) *NS {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	n := &NS{Path: path, remove: func() error { return unmount(path) }}
	t.Cleanup(func() {
		if err := n.remove(); err != nil {
			t.Error(err)
		}
	})
	made := make(chan error, 1)
	netns.OnThread(func() {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- fmt.Errorf("unshare: %w", err)
			return
		}
		made <- unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	})
	if err := <-made; err != nil {
		t.Fatalf("make namespace %s: %v", path, err)
	}
	n.setUp(t)
	return n
}

// unmount undoes mounted. It may be called again, and when nothing was mounted.
func unmount(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (n *NS) setUp(t testing.TB) {
	t.Helper()
	var err error
	if n.Ino, err = inode(n.Path); err != nil {
		t.Fatal(err)
	}
	for _, set := range [][2]string{
		{"net.ipv4.ip_forward", "0"},
		{"net.ipv6.conf.all.disable_ipv6", "1"},
		{"net.ipv6.conf.default.disable_ipv6", "1"},
	} {
		if err := n.writeSysctl(set[0], set[1]); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	n.Up(t, "lo")
}

func inode(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

// Delete removes the namespace before the test ends. The kernel takes down what is in it a little later; WaitNoLink tells
// when a device of it is gone.
func (n *NS) Delete(t testing.TB) {
	t.Helper()
	if n.remove == nil {
		t.Fatalf("namespace %s was not made by New, Named or WithProcess", n.Path)
	}
	if err := n.remove(); err != nil {
		t.Fatal(err)
	}
}
