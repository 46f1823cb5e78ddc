package netns

import (
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// Told is what a kernel tells by netlink and ioctl. What is nil is not supported by it.
type Told struct {
	Links     []Link
	Conntrack *Conntrack
	Qdiscs    []Qdisc
	Undecoded int // qdiscs
	Offloads  []Offloads
	Hardware  []Hardware
}

// Fixture returns a view of plain files, for tests only: root/proc stands for procfs, with the namespace's files in
// root/proc/net, and root/sys for sysfs. Without a Conntrack net/stat/nf_conntrack is read instead.
func Fixture(root string, n *Namespace, told Told) *View {
	v := &View{
		Namespace: n, Cookie: n.Ino, Entered: true,
		proc: filepath.Join(root, "proc"), sys: filepath.Join(root, "sys"), files: &fileMemo{},
	}
	absent := fmt.Errorf("fixture: %w", ErrUnsupported)
	v.net, _ = folder(v, v.proc, "net")
	v.links = func() ([]Link, bool, error) { return told.Links, false, nil }
	v.qdiscs = func() ([]Qdisc, int, error) { return told.Qdiscs, told.Undecoded, without(told.Qdiscs == nil, absent) }
	v.offloads = func() ([]Offloads, error) { return told.Offloads, without(told.Offloads == nil, absent) }
	v.hardware = func() ([]Hardware, error) { return told.Hardware, without(told.Hardware == nil, absent) }
	v.sysctl = func(name string) (int, error) { return folder(v, v.proc, "sys/net", name) }
	v.online = (&Visitor{sys: v.sys}).onlineCPUs
	v.steering = func() ([]Steering, error) {
		sys, err := folder(v, v.sys)
		if err != nil {
			return nil, err
		}
		return readSteering(sys, told.Links, nil)
	}
	v.conntrack = func() (*Conntrack, error) {
		return told.Conntrack, without(told.Conntrack == nil, absent)
	}
	return v
}

func without(missing bool, err error) error {
	if missing {
		return err
	}
	return nil
}

// FixtureOffloads returns features as the kernel would tell them, for tests only.
func FixtureOffloads(device string, features map[string]bool) Offloads {
	o := Offloads{Device: device, names: slices.Sorted(maps.Keys(features)), active: make([]byte, len(features)/8+1)}
	for bit, name := range o.names {
		if features[name] {
			o.active[bit/8] |= 1 << (bit % 8)
		}
	}
	return o
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
