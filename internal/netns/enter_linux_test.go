package netns_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

// TestDoLeavesTheRestAlone: the thread group leader, whose namespace everything sees that reads /proc/self, never moves, and
// no thread is left over, neither inside nor outside.
func TestDoLeavesTheRestAlone(t *testing.T) {
	n := nettest.New(t)
	home := keyOf(t, "/proc/self/ns/net")
	var wg sync.WaitGroup
	round := func() {
		for range 8 {
			wg.Go(func() {
				for range 50 {
					if err := netns.Do(n.Path, func() error {
						if here(t).Ino != n.Ino {
							t.Error("not inside")
						}
						return nil
					}); err != nil {
						t.Error(err)
					}
					if keyOf(t, "/proc/self/ns/net") != home || here(t) != home {
						t.Error("the test moved")
					}
				}
			})
		}
		wg.Wait()
	}
	round() // the runtime makes the threads that it wants to keep
	threads, fds := nettest.Threads(), nettest.OpenFDs()
	round()
	eventually(t, "as many threads and descriptors as before", func() bool {
		// The runtime may keep a few threads more than at first; 400 calls would show.
		return nettest.Threads() <= threads+20 && nettest.OpenFDs() <= fds
	})
	eventually(t, "all threads at home", func() bool {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			var st unix.Stat_t
			if unix.Stat("/proc/self/task/"+task.Name()+"/ns/net", &st) == nil && st.Ino != home.Ino {
				return false
			}
		}
		return true
	})
}

// TestDoKeepsSockets: a socket that was opened inside stays there.
func TestDoKeepsSockets(t *testing.T) {
	n := nettest.New(t)
	var l net.Listener
	if err := netns.Do(n.Path, func() (err error) {
		l, err = net.Listen("tcp4", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if conn, err := net.DialTimeout("tcp4", l.Addr().String(), time.Second); err == nil {
		conn.Close()
		t.Error("the listener is to be reached from outside")
	}
	if err := netns.Do(n.Path, func() error {
		conn, err := net.DialTimeout("tcp4", l.Addr().String(), 5*time.Second)
		if err == nil {
			conn.Close()
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

func TestDoErrors(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo") // must not hang
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	never := func() error { t.Error("ran"); return nil }
	for _, path := range []string{filepath.Join(dir, "missing"), plain, fifo, plain + "/x", "/proc/1234567890/ns/net"} {
		if err := netns.Do(path, never); !errors.Is(err, netns.ErrGone) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if os.Getuid() != 0 {
		if err := netns.Do("/proc/self/ns/net", never); !errors.Is(err, netns.ErrDenied) {
			t.Errorf("without a privilege: %v", err)
		}
		return
	}
	errInside := errors.New("inside")
	if err := netns.Do(nettest.New(t).Path, func() error { return errInside }); !errors.Is(err, errInside) {
		t.Errorf("error of the function: %v", err)
	}
}

// TestOnThreadIsNeverTheLeader: that thread cannot end.
func TestOnThreadIsNeverTheLeader(t *testing.T) {
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			onThread(func() {
				if unix.Gettid() == unix.Getpid() {
					t.Error("on the leader")
				}
			})
		})
	}
	wg.Wait()
}
