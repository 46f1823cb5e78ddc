package netns

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxFile bounds what is read of one kernel file, in bytes.
const maxFile = 8 << 20

// View is what a collector sees of one namespace, from inside it where the kernel lets us in. It is valid during the visit
// only, and so is everything that it returns. What was read once in a visit is not read again.
type View struct {
	Namespace *Namespace
	Cookie    uint64 // what tells the namespace from every other until the next boot; 0 if the kernel does not say
	Entered   bool   // whether the thread is inside; if not, only what /proc/PID/net shows is there

	proc, sys string // procfs and sysfs, or a fixture's
	net       int    // descriptor of the folder of the namespace's net files
	links     func() ([]Link, bool, error)
	qdiscs    func() ([]Qdisc, int, error)
	sysctl    func(folder string) (int, error)
	online    func() (map[int]bool, error)
	steering  func() ([]Steering, error)
	offloads  func() ([]Offloads, error)
	hardware  func() ([]Hardware, error)
	conntrack func() (*Conntrack, error)
	files     *fileMemo
	linkMemo  *linkMemo
}

// linkMemo is the answer of the first call of Links.
type linkMemo struct {
	links  []Link
	capped bool
	err    error
}

// needsEntry refuses what only the view from inside shows.
func (v *View) needsEntry(what string) error {
	if !v.Entered {
		return fmt.Errorf("%s: %w: it takes CAP_SYS_ADMIN to enter the namespace", what, ErrDenied)
	}
	return nil
}

// NetFile returns /proc/net/name of the namespace.
func (v *View) NetFile(name string) ([]byte, error) { return v.files.read(v.net, name) }

// ProcFile returns a file of /proc that is the same in all namespaces.
func (v *View) ProcFile(name string) ([]byte, error) {
	return v.files.read(unix.AT_FDCWD, filepath.Join(v.proc, name))
}

// Sysctl returns a file of a folder of /proc/sys/net of the namespace. A file that is not there is a feature that is not loaded.
func (v *View) Sysctl(name string) ([]byte, error) {
	if err := v.needsEntry("sysctl net/" + name); err != nil {
		return nil, err
	}
	folder, file := filepath.Split(name)
	dir, err := v.sysctl(filepath.Clean(folder))
	if err != nil {
		return nil, err
	}
	b, err := v.files.readAs("sys/net/"+name, dir, file)
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return b, err
}

// Links returns the devices of the namespace, ordered by index. It tells whether there are more than the limit. Seen from
// outside the namespace they have no more than a name and counters.
func (v *View) Links() (links []Link, capped bool, err error) {
	if v.linkMemo == nil {
		v.linkMemo = &linkMemo{}
		v.linkMemo.links, v.linkMemo.capped, v.linkMemo.err = v.links()
	}
	return v.linkMemo.links, v.linkMemo.capped, v.linkMemo.err
}

// Qdiscs returns the queueing disciplines of the namespace that have a queue, and how many more could not be decoded.
func (v *View) Qdiscs() (qdiscs []Qdisc, undecoded int, err error) {
	if err := v.needsEntry("qdiscs"); err != nil {
		return nil, 0, err
	}
	return v.qdiscs()
}

// Steering returns how each device but loopback spreads its packets over CPUs.
func (v *View) Steering() ([]Steering, error) {
	if err := v.needsEntry("steering"); err != nil {
		return nil, err
	}
	return v.steering()
}

// Offloads returns the features of each device.
func (v *View) Offloads() ([]Offloads, error) {
	if err := v.needsEntry("features"); err != nil {
		return nil, err
	}
	return v.offloads()
}

// Hardware returns what the drivers of physical devices tell.
func (v *View) Hardware() ([]Hardware, error) {
	if err := v.needsEntry("drivers"); err != nil {
		return nil, err
	}
	return v.hardware()
}

// OnlineCPUs returns the CPUs that are online.
func (v *View) OnlineCPUs() (map[int]bool, error) { return v.online() }

// Conntrack returns the connection tracking of the namespace, from ctnetlink, or from procfs where that is refused or absent.
func (v *View) Conntrack() (*Conntrack, error) {
	ct, err := v.conntrack()
	if err == nil {
		return ct, nil
	}
	b, fileErr := v.NetFile("stat/nf_conntrack")
	if errors.Is(fileErr, unix.ENOENT) {
		return nil, err
	}
	if fileErr != nil {
		return nil, fileErr
	}
	ct, err = parseConntrack(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrParse, err)
	}
	return ct, nil
}

// netDevColumns are the columns of net/dev that are counters of a device and nothing else.
var netDevColumns = map[int]int{
	0: ReceiveBytes, 1: ReceivePackets, 2: ReceiveErrors, 3: ReceiveDropped,
	8: TransmitBytes, 9: TransmitPackets, 10: TransmitErrors, 11: TransmitDropped,
}

// parseNetDev reads net/dev, the only view of devices from outside: two lines of header, then one for each device. The
// kernel puts blanks before a name; a name may hold anything but blanks, slashes and colons, so also what Unicode calls a
// space, which procfs's parser takes off.
func parseNetDev(b []byte, limit int) (links []Link, capped bool, err error) {
	line := 0
	for text := range bytes.Lines(b) {
		if line++; line <= 2 {
			continue
		}
		if limit > 0 && len(links) == limit {
			return links, true, nil
		}
		name, counters, ok := bytes.Cut(text, []byte(":"))
		columns := bytes.Fields(counters)
		if !ok || len(columns) != 16 {
			return nil, false, fmt.Errorf("net/dev: line %d has %d columns", line, len(columns))
		}
		l := Link{Name: deviceName(bytes.TrimLeft(name, " "), int32(line)), PeerNSID: -1, Counted: TransmitDropped + 1}
		for column, counter := range netDevColumns {
			if l.Counters[counter], err = strconv.ParseUint(string(columns[column]), 10, 64); err != nil {
				return nil, false, fmt.Errorf("net/dev: line %d: %w", line, err)
			}
		}
		links = append(links, l)
	}
	return links, false, nil
}

// fileMemo keeps the files that were read in one visit. Its buffers serve the next visit again.
type fileMemo struct {
	slots []fileSlot
	used  int
}

type fileSlot struct {
	key  string
	data []byte
	err  error
}

func (m *fileMemo) reset() { m.used = 0 }

func (m *fileMemo) read(dir int, name string) ([]byte, error) { return m.readAs(name, dir, name) }

// readAs reads the file of that name in dir, and keeps it under key.
func (m *fileMemo) readAs(key string, dir int, name string) ([]byte, error) {
	for i := range m.slots[:m.used] {
		if m.slots[i].key == key {
			return m.slots[i].data, m.slots[i].err
		}
	}
	if m.used == len(m.slots) {
		m.slots = append(m.slots, fileSlot{data: make([]byte, 0, 8<<10)})
	}
	s := &m.slots[m.used]
	m.used++
	s.key = key
	s.data, s.err = readFile(dir, name, s.data[:0])
	return s.data, s.err
}

// readFile appends the content of a kernel file to buf.
func readFile(dir int, name string, buf []byte) ([]byte, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return buf, classifyFile(fmt.Errorf("open %s: %w", name, err))
	}
	defer unix.Close(fd)
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := unix.Read(fd, buf[len(buf):cap(buf)])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return buf, classifyFile(fmt.Errorf("read %s: %w", name, err))
		}
		if n == 0 {
			return buf, nil
		}
		if buf = buf[:len(buf)+n]; len(buf) > maxFile {
			return buf, fmt.Errorf("read %s: more than %d bytes", name, maxFile)
		}
	}
}

// classifyFile is classify for files, where ENOENT may mean a feature that this kernel lacks: the caller decides.
func classifyFile(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return err
	}
	return classify(err)
}
