package netns

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// What the tests of package netns_test see of the inside. They are in a package of their own because nettest imports netns.

// DockerWait is how long a discovery waits for the engine.
const DockerWait = dockerWait

// ParseConntrack is parseConntrack.
func ParseConntrack(b []byte) (*Conntrack, error) { return parseConntrack(b) }

// NewNamespace makes a namespace as if a discovery had found it by these ways.
func NewNamespace(key Key, mount string, pids ...int) *Namespace {
	n := &Namespace{Key: key, Name: fmt.Sprintf("inode:%d", key.Ino), Source: SourceProcess, mount: mount}
	for _, pid := range pids {
		n.addPID(pid)
	}
	return n
}

// Forgive has d ask a failed engine again at once.
func (d *Docker) Forgive() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failed = time.Time{}
}

// LinkTable is linkTable.
type LinkTable = linkTable

// NewLinkTable makes a table of the namespace that the thread is in.
func NewLinkTable() (*LinkTable, error) { return newLinkTable(make([]byte, netlinkBuffer)) }

// Read is read.
func (t *linkTable) Read() ([]Link, error) { return t.read() }

// Close is close.
func (t *linkTable) Close() { t.close() }

// Dumps tells whether the next read will dump all links.
func (t *linkTable) Dumps() bool { return t.stale }

// ShrinkEvents makes room for very few events.
func (t *linkTable) ShrinkEvents() error {
	return unix.SetsockoptInt(t.events.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1)
}

// LostEvents tells whether the kernel had to drop an event that the table has not noticed yet. It must be called in the
// table's namespace.
func (t *linkTable) LostEvents() (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(t.events.fd, &st); err != nil {
		return false, err
	}
	b, err := os.ReadFile("/proc/thread-self/net/netlink")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(b)) {
		// sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode
		if f := strings.Fields(line); len(f) == 10 && f[9] == strconv.FormatUint(st.Ino, 10) {
			return f[8] != "0", nil
		}
	}
	return false, fmt.Errorf("socket %d is not listed in\n%s", st.Ino, b)
}
