package netns

import (
	"fmt"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Fixture returns a view of plain files, for tests only: root/proc stands for procfs, with the namespace's files in
// root/proc/net, and root/sys for sysfs. What comes by netlink is given; without a Conntrack there is no ctnetlink, and
// net/stat/nf_conntrack is read instead. There are no qdiscs.
func Fixture(root string, n *Namespace, links []Link, conntrack *Conntrack) *View {
	v := &View{
		Namespace: n, Cookie: n.Ino, Entered: true,
		proc: filepath.Join(root, "proc"), sys: filepath.Join(root, "sys"), files: &fileMemo{},
	}
	v.net = folder(v, v.proc, "net")
	v.sysctl = func(dir string) (int, error) { return folder(v, v.proc, "sys/net", dir), nil }
	v.links = func() ([]Link, bool, error) { return links, false, nil }
	v.qdiscs = func() ([]Qdisc, int, error) { return nil, 0, nil }
	v.online = func() (map[int]bool, error) {
		b, err := readFile(unix.AT_FDCWD, filepath.Join(v.sys, "devices/system/cpu/online"), nil)
		if err != nil {
			return nil, err
		}
		return parseCPUs(b)
	}
	v.steering = func() ([]Steering, error) { return readSteering(folder(v, v.sys, "."), links, nil) }
	v.conntrack = func() (*Conntrack, error) {
		if conntrack == nil {
			return nil, fmt.Errorf("fixture without ctnetlink: %w", ErrUnsupported)
		}
		return conntrack, nil
	}
	return v
}

// folder opens a folder for as long as v is used. One that is missing makes what is read in it fail.
func folder(v *View, elem ...string) int {
	fd, err := unix.Open(filepath.Join(elem...), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		runtime.AddCleanup(v, func(fd int) { unix.Close(fd) }, fd)
	}
	return fd
}
