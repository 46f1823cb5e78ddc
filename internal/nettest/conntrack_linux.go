package nettest

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	conntrackMax = "/proc/sys/net/netfilter/nf_conntrack_max"
	// limitTimeout is the longest that a node's limit is changed.
	limitTimeout = 2 * time.Second
	// limitWait is how long a test waits for others that change the limit too.
	limitWait = time.Minute
)

// trackRules need the state of what is forwarded, which is what makes the kernel track connections in a namespace.
const trackRules = `
table ip nettest {
	chain forward {
		type filter hook forward priority filter; policy accept;
		ct state established,related accept
	}
}`

// TrackState makes the namespace track connections.
func (n *NS) TrackState(t testing.TB) {
	t.Helper()
	n.NFT(t, trackRules)
}

// NFT loads nftables rules into the namespace.
func (n *NS) NFT(t testing.TB, rules string) {
	t.Helper()
	if n.host {
		t.Fatal("not in the host's namespace")
	}
	if _, err := n.input(t, rules, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// WithConntrackLimit runs fn while no namespace may track more than limit connections. That limit is one for the whole node,
// so it is given back after two seconds even if fn still runs, which fails the test. Only one test at a time gets it.
func WithConntrackLimit(t testing.TB, limit int, fn func()) {
	t.Helper()
	Root(t)
	f, err := os.OpenFile(conntrackMax, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		lacking(t, "needs connection tracking in the kernel")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // gives up the lock
	if err := lockFile(f, limitWait); err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(conntrackMax)
	if err != nil {
		t.Fatal(err)
	}
	set := func(value string) error { return os.WriteFile(conntrackMax, []byte(value), 0) }
	restore := sync.OnceValue(func() error { return set(strings.TrimSpace(string(old))) })
	watchdog := time.AfterFunc(limitTimeout, func() { _ = restore() })
	defer func() {
		late := !watchdog.Stop()
		if err := restore(); err != nil {
			t.Errorf("restore the conntrack limit: %v", err)
		}
		if late {
			t.Errorf("the conntrack limit was given back before the function ended, after %v", limitTimeout)
		}
	}()
	if err := set(strconv.Itoa(limit)); err != nil {
		t.Fatal(err)
	}
	fn()
}

// lockFile keeps other tests, also of other packages, from what f stands for until f is closed.
func lockFile(f *os.File, wait time.Duration) error {
	for end := time.Now().Add(wait); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}
