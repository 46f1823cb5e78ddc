package nettest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vethexporter/vethexporter/internal/netns"
)

// commandTimeout bounds every program that is run inside a namespace.
const commandTimeout = 30 * time.Second

// errExit says that a function left its goroutine, as FailNow and SkipNow do.
var errExit = errors.New("function did not return")

// Do runs fn on a thread inside the namespace. Sockets opened there stay there, and fn may fail the test. It must not start
// goroutines that care for the namespace: only this one thread is inside.
func (n *NS) Do(t testing.TB, fn func()) {
	t.Helper()
	n.do(t, "run", func() error { fn(); return nil })
}

// do fails the test if fn does.
func (n *NS) do(t testing.TB, what string, fn func() error) {
	t.Helper()
	err := n.try(fn)
	if errors.Is(err, errExit) {
		t.FailNow()
	}
	if err != nil {
		t.Fatalf("%s in %s: %v", what, n.Path, err)
	}
}

// try is netns.Do, except that fn may call FailNow, which would leave the caller of netns.Do waiting for ever.
func (n *NS) try(fn func() error) error {
	result := make(chan error, 2)
	go func() {
		result <- netns.Do(n.Path, func() error {
			returned := false
			defer func() {
				if !returned {
					result <- errExit
				}
			}()
			err := fn()
			returned = true
			return err
		})
	}()
	return <-result
}

// Exec runs a program inside the namespace and returns what it prints. Only the network differs from outside: such a
// program still sees the test's own /sys.
func (n *NS) Exec(t testing.TB, name string, args ...string) []byte {
	t.Helper()
	out, err := n.TryExec(t, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TryExec is Exec for a program that may fail.
func (n *NS) TryExec(t testing.TB, name string, args ...string) ([]byte, error) {
	t.Helper()
	return n.input(t, "", name, args...)
}

// input runs a program that reads from stdin.
func (n *NS) input(t testing.TB, stdin, name string, args ...string) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, Tool(t, name), args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdin = strings.NewReader(stdin)
	cmd.WaitDelay = time.Second
	var out []byte
	err := n.try(func() error {
		var err error
		out, err = cmd.Output() // a child starts in the namespace of the thread that forks it
		return err
	})
	if err != nil {
		var stderr []byte
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			stderr = exit.Stderr
		}
		return out, fmt.Errorf("%s %s in %s: %w: %s", name, strings.Join(args, " "), n.Path, err, stderr)
	}
	return out, nil
}

// Sysctl sets a kernel parameter such as net.ipv4.ip_forward. A name with a slash in it is taken as a path below /proc/sys,
// for devices with a dot in their name. The old value comes back at the end if the namespace outlives the test.
func (n *NS) Sysctl(t testing.TB, key, value string) {
	t.Helper()
	if n.host {
		old := n.SysctlGet(t, key)
		t.Cleanup(func() {
			if err := n.writeSysctl(key, old); err != nil {
				t.Error(err)
			}
		})
	}
	if err := n.writeSysctl(key, value); err != nil {
		t.Fatal(err)
	}
}

// SysctlGet returns a kernel parameter as the namespace has it.
func (n *NS) SysctlGet(t testing.TB, key string) string {
	t.Helper()
	var value []byte
	n.do(t, "sysctl", func() (err error) {
		value, err = os.ReadFile(sysctlPath(key))
		return err
	})
	return strings.TrimSpace(string(value))
}

func (n *NS) writeSysctl(key, value string) error {
	return n.try(func() error { return os.WriteFile(sysctlPath(key), []byte(value), 0) })
}

func sysctlPath(key string) string {
	if !strings.Contains(key, "/") {
		key = strings.ReplaceAll(key, ".", "/")
	}
	return path.Join("/proc/sys", key)
}

// Sysfs writes to a file below the namespace's own /sys/class/net, such as eth0/queues/rx-0/rps_cpus. An ordinary /sys shows
// the namespace that mounted it, so this mounts one for the purpose, attached nowhere.
func (n *NS) Sysfs(t testing.TB, file, value string) {
	t.Helper()
	n.do(t, "write "+file, func() error {
		return sysfsFile(file, unix.O_WRONLY, func(f *os.File) error {
			_, err := f.WriteString(value)
			return err
		})
	})
}

// SysfsGet reads a file below the namespace's own /sys/class/net.
func (n *NS) SysfsGet(t testing.TB, file string) string {
	t.Helper()
	buf := make([]byte, 4096) // sysfs has no longer files
	n.do(t, "read "+file, func() error {
		return sysfsFile(file, unix.O_RDONLY, func(f *os.File) error {
			got, err := f.Read(buf)
			buf = buf[:got]
			return err
		})
	})
	return strings.TrimSpace(string(buf))
}

func sysfsFile(file string, flags int, use func(*os.File) error) error {
	fs, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fsopen sysfs: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("create sysfs: %w", err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount sysfs: %w", err)
	}
	defer unix.Close(mount)
	fd, err := unix.Openat(mount, filepath.Join("class/net", file), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", file, err)
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	return use(f)
}
