package netns_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

// bind mounts what from leads to on a new file, until the test ends.
func bind(t *testing.T, from, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(from, path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func TestDiscoverEachKind(t *testing.T) {
	nettest.Root(t)
	dir := t.TempDir()
	process, mounted := nettest.WithProcess(t), nettest.New(t)
	bind(t, mounted.Path, filepath.Join(dir, "blue"))
	found := discover(t, &netns.Discovery{Named: []string{dir}})

	got := find(t, found, process)
	if want := fmt.Sprintf("inode:%d", process.Ino); got.Name != want || got.Source != netns.SourceProcess || got.Processes != 1 {
		t.Errorf("of a process: %+v, want name %s", got, want)
	}
	got = find(t, found, mounted)
	if got.Name != "named:blue" || got.Source != netns.SourceMount || got.Processes != 0 {
		t.Errorf("mounted: %+v", got)
	}
	if got.Host || got.Inode() != fmt.Sprint(mounted.Ino) {
		t.Errorf("mounted: %+v, inode %s", got, got.Inode())
	}
}

// TestDiscoverNested finds a namespace that a process made from inside another one and another process namespace, as a
// runtime inside a container does it.
func TestDiscoverNested(t *testing.T) {
	outer := nettest.WithProcess(t)
	cmd := exec.Command(nettest.Tool(t, "sleep"), "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID}
	outer.Do(t, func() {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	inner := keyOf(t, fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	if inner.Ino == outer.Ino {
		t.Fatal("the inner process is in the outer namespace")
	}
	found := discover(t, &netns.Discovery{})
	find(t, found, outer)
	find(t, found, &nettest.NS{Path: "inner", Ino: inner.Ino})
}

// TestDiscoverOnce holds that a namespace with several ways into it is one namespace, with the name that says most.
func TestDiscoverOnce(t *testing.T) {
	n := nettest.WithProcess(t)
	named, unnamed := t.TempDir(), t.TempDir()
	bind(t, n.Path, filepath.Join(unnamed, "1a2b3c"))
	bind(t, n.Path, filepath.Join(named, "blue"))
	bind(t, n.Path, filepath.Join(named, "green"))
	found := discover(t, &netns.Discovery{Named: []string{named}, Unnamed: []string{unnamed}})
	if got := find(t, found, n); got.Name != "named:blue" || got.Source != netns.SourceProcess || got.Processes != 1 {
		t.Errorf("found %+v", got)
	}
	// Without the folder whose names mean something, the inode has to do.
	found = discover(t, &netns.Discovery{Unnamed: []string{unnamed, named}})
	if got := find(t, found, n); got.Name != fmt.Sprintf("inode:%d", n.Ino) {
		t.Errorf("found %+v", got)
	}
}

// TestDiscoverIgnoresLeftOvers: a plain file, a folder, a dangling link or a mount of anything else leads to no namespace.
func TestDiscoverIgnoresLeftOvers(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "stale"), nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	found := discover(t, &netns.Discovery{Named: []string{dir, filepath.Join(dir, "missing")}})
	for _, n := range found.Namespaces {
		if n.Source == netns.SourceMount || strings.HasPrefix(n.Name, "named:") {
			t.Errorf("found %+v", n)
		}
	}
}

// TestDiscoverHost needs no privilege: the host's namespace is known even where the kernel hides process 1's.
func TestDiscoverHost(t *testing.T) {
	found := discover(t, &netns.Discovery{})
	home := keyOf(t, "/proc/self/ns/net")
	if found.Home != home {
		t.Errorf("home %v, want %v", found.Home, home)
	}
	if !found.HostKnown {
		t.Fatal("the host's namespace is not known")
	}
	hosts := 0
	for i, n := range found.Namespaces {
		if n.Host {
			hosts++
		}
		if n.Host != (i == 0) || n.Host != (n.Name == netns.HostName) {
			t.Errorf("namespace %d: %+v", i, n)
		}
	}
	if hosts != 1 {
		t.Errorf("%d namespaces of the host", hosts)
	}
	var own, first unix.Stat_t
	if err := unix.Stat("/proc/self/net/netstat", &own); err != nil {
		t.Fatal(err)
	}
	if err := unix.Stat("/proc/1/net/netstat", &first); err != nil {
		t.Fatal(err)
	}
	if got := found.HomeIsHost(); got != (own.Ino == first.Ino) {
		t.Errorf("home is the host's: %v; files %d and %d", got, own.Ino, first.Ino)
	}
	if !slices.IsSortedFunc(found.Namespaces[1:], func(a, b *netns.Namespace) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("not sorted by name")
	}
}

// TestDiscoverNameCollision: both of two namespaces with one name get their inode, so that neither takes over the other's
// series.
func TestDiscoverNameCollision(t *testing.T) {
	nettest.Root(t)
	one, two := t.TempDir(), t.TempDir()
	a, b := nettest.Named(t, one, "blue"), nettest.Named(t, two, "blue")
	found := discover(t, &netns.Discovery{Named: []string{one, two}})
	for _, n := range []*nettest.NS{a, b} {
		if got, want := find(t, found, n).Name, fmt.Sprintf("named:blue@%d", n.Ino); got != want {
			t.Errorf("name %s, want %s", got, want)
		}
	}
}

// TestDiscoverCap: beyond the limit namespaces are counted, and the host's is never among them.
func TestDiscoverCap(t *testing.T) {
	nettest.Root(t)
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		nettest.Named(t, dir, name)
	}
	for _, limit := range []int{1, 2} {
		found := discover(t, &netns.Discovery{Named: []string{dir}, MaxNetns: limit})
		if len(found.Namespaces) != limit || found.Capped < 4-limit {
			t.Errorf("limit %d: %d namespaces, %d capped", limit, len(found.Namespaces), found.Capped)
		}
		if !found.Namespaces[0].Host {
			t.Errorf("limit %d: first is %+v", limit, found.Namespaces[0])
		}
	}
}

func TestDiscoverWithoutProcfs(t *testing.T) {
	d := netns.Discovery{Proc: filepath.Join(t.TempDir(), "missing")}
	if found, err := d.Discover(t.Context()); err == nil || !strings.Contains(err.Error(), "procfs") {
		t.Errorf("found %+v, error %v", found, err)
	}
	if d.OwnProcessesOnly() {
		t.Error("own processes only, without procfs")
	}
}

const inContainerEnv = "VETHEXPORTER_TEST_IN_CONTAINER"

// TestOwnProcessesOnly asks from inside a process namespace, once with a procfs of its own, as a container without hostPID
// has it, and once with that of the node.
func TestOwnProcessesOnly(t *testing.T) {
	if want, inside := os.LookupEnv(inContainerEnv); inside {
		if got := (&netns.Discovery{Proc: "/proc"}).OwnProcessesOnly(); fmt.Sprint(got) != want {
			t.Errorf("own processes only: %v, want %s", got, want)
		}
		return
	}
	nettest.Root(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for want, script := range map[string]string{
		"true":  `mount -t proc proc /proc && exec "$0" "$@"`,
		"false": `exec "$0" "$@"`,
	} {
		cmd := exec.CommandContext(t.Context(), nettest.Tool(t, "unshare"), "--pid", "--fork", "--mount",
			"sh", "-c", script, self, "-test.run", "^TestOwnProcessesOnly$")
		cmd.Env = append(os.Environ(), inContainerEnv+"="+want, "GORACE=atexit_sleep_ms=0")
		cmd.WaitDelay = time.Second
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", want, err, out)
		}
	}
}
