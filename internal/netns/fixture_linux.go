package netns

import (
	"fmt"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Fixture returns a view of plain files, for tests only: root/proc stands for procfs, with the namespace's files in
// root/proc/net, and root/sys for sysfs. What comes by netlink is given, or not supported; without a Conntrack
// net/stat/nf_conntrack is read instead.
func Fixture(root string, n *Namespace, links []Link, conntrack *Conntrack) *View {
	v := &View{
		Namespace: n, Cookie: n.Ino, Entered: true,
		proc: filepath.Join(root, "proc"), sys: filepath.Join(root, "sys"), files: &fileMemo{},
	}
	absent := fmt.Errorf("fixture: %w", ErrUnsupported)
	v.net, _ = folder(v, v.proc, "net")
	v.links = func() ([]Link, bool, error) { return links, false, nil }
	v.qdiscs = func() ([]Qdisc, int, error) { return nil, 0, absent }
	v.offloads = func() ([]Offloads, error) { return nil, absent }
	v.hardware = func() ([]Hardware, error) { return nil, absent }
	v.sysctl = func(name string) (int, error) { return folder(v, v.proc, "sys/net", name) }
	v.online = (&Visitor{sys: v.sys}).onlineCPUs
	v.steering = func() ([]Steering, error) {
		sys, err := folder(v, v.sys)
		if err != nil {
			return nil, err
		}
		return readSteering(sys, links, nil)
	}
	v.conntrack = func() (*Conntrack, error) {
		if conntrack == nil {
			return nil, absent
		}
		return conntrack, nil
	}
	return v
}

// folder opens a folder for as long as v is used.
func folder(v *View, elem ...string) (int, error) {
	fd, err := unix.Open(filepath.Join(elem...), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("fixture: %w: %w", ErrUnsupported, err)
	}
	runtime.AddCleanup(v, func(fd int) { unix.Close(fd) }, fd)
	return fd, nil
}
