package netns

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/mdlayher/ethtool"
	"golang.org/x/sys/unix"
)

// netlinkBuffer holds any datagram that the kernel sends: it makes them of 32 KiB at most.
const netlinkBuffer = 64 << 10

// Visitor goes into namespaces, one after another, on one locked thread. It is for that thread alone.
type Visitor struct {
	proc, sys  string
	maxDevices int

	home     int // descriptor of the thread's own namespace
	homeKey  Key
	host     *linkTable // follows the host's devices; nil until they were asked for
	route    *conn      // of the namespace that is being visited; nil until it is wanted
	buf      []byte
	files    fileMemo
	links    []Link
	speeds   map[speedKey]int
	kits     map[uint64]*kit // by cookie
	lent     *kit            // of this visit, if none is kept
	maxKits  int
	features *featureNames      // nil until they were asked for
	peers    map[peerKey]uint64 // the cookie that a namespace's number for another leads to
	scrape   int                // number of the scrape under way
	online   map[int]bool       // the CPUs that are online; nil until they were asked for in this scrape
	refused  bool               // setns was refused once: it always will be
	tracks   bool               // connection tracking was seen to be loaded
}

// speedKey is what a device's speed may be kept under: it changes only with the carrier.
type speedKey struct {
	cookie  uint64
	index   int32
	changes uint32
}

// maxSpeeds bounds the kept speeds; there is one for each physical device.
const maxSpeeds = 1024

// VisitorOptions says where procfs and the host's sysfs are, and how many devices of a namespace other than the host's are
// looked at (0 for all).
type VisitorOptions struct {
	Proc, Sys  string
	MaxDevices int
}

// NewVisitor makes a visitor of the calling goroutine's thread, which must be locked and in its own namespace.
func NewVisitor(o VisitorOptions) (*Visitor, error) {
	home, err := openNS(o.Proc + "/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("own namespace: %w", err)
	}
	key, err := keyOf(home)
	if err != nil {
		unix.Close(home)
		return nil, fmt.Errorf("own namespace: %w", err)
	}
	return &Visitor{
		proc: o.Proc, sys: o.Sys, maxDevices: o.MaxDevices, home: home, homeKey: key,
		buf: make([]byte, netlinkBuffer), speeds: map[speedKey]int{},
		kits: map[uint64]*kit{}, maxKits: keepable(), peers: map[peerKey]uint64{},
	}, nil
}

// Close gives back what the visitor holds.
func (v *Visitor) Close() {
	unix.Close(v.home)
	for _, k := range v.kits {
		k.close()
	}
	if v.host != nil {
		v.host.close()
	}
}

// Visit runs fn with a view of n. Where the kernel refuses entry, the view is of what /proc/PID/net shows; then, or if it
// shows nothing, the error wraps ErrDenied. ErrGone says that n ended before: fn did not run. An error that wraps
// ErrStranded obliges the caller to end the thread.
func (v *Visitor) Visit(n *Namespace, fn func(*View)) error {
	if n.Key == v.homeKey {
		return v.inside(n, v.home, fn)
	}
	if n.byProcfs || v.refused {
		return v.outside(n, fn)
	}
	fd, err := v.open(n)
	if err != nil {
		if errors.Is(err, ErrDenied) {
			return v.outside(n, fn)
		}
		return err
	}
	defer unix.Close(fd)
	var innerErr error
	err = visit(v.home, fd, func() { innerErr = v.inside(n, fd, fn) })
	if errors.Is(err, ErrDenied) {
		v.refused = true
		return v.outside(n, fn)
	}
	return errors.Join(err, innerErr)
}

// Home runs fn with a view of the thread's own namespace, whether or not it is one that was found.
func (v *Visitor) Home(fn func(*View)) error {
	return v.inside(&Namespace{Key: v.homeKey}, v.home, fn)
}

// open opens the namespace by any way into it that is left.
func (v *Visitor) open(n *Namespace) (int, error) {
	paths := make([]string, 0, keptPIDs+1)
	for _, pid := range n.pids {
		paths = append(paths, v.proc+"/"+strconv.Itoa(pid)+"/ns/net")
	}
	if n.mount != "" {
		paths = append(paths, n.mount)
	}
	err := ErrGone
	for _, path := range paths {
		fd, openErr := openNS(path)
		if openErr != nil {
			if !errors.Is(openErr, ErrGone) {
				err = openErr
			}
			continue
		}
		if key, keyErr := keyOf(fd); keyErr == nil && key == n.Key {
			return fd, nil
		}
		unix.Close(fd) // another namespace took the process number, the name or the mount
	}
	return -1, err
}

// inside runs fn while the thread is in n, whose descriptor is fd.
func (v *Visitor) inside(n *Namespace, fd int, fn func(*View)) error {
	net, err := unix.Open(v.proc+"/thread-self/net", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return classify(fmt.Errorf("open net files: %w", err))
	}
	defer unix.Close(net)
	cookie := cookieOf(fd)
	if cookie == 0 {
		cookie = socketCookie()
	}
	v.files.reset()
	view := &View{Namespace: n, Cookie: cookie, Entered: true, proc: v.proc, sys: v.sys, net: net, files: &v.files}
	view.links = func() ([]Link, bool, error) { return v.readLinks(view) }
	view.qdiscs = func() ([]Qdisc, int, error) { return v.readQdiscs(view) }
	view.offloads = func() ([]Offloads, error) { return v.readOffloads(view) }
	view.hardware = func() ([]Hardware, error) {
		links, _, err := view.Links()
		if err != nil {
			return nil, err
		}
		return readHardware(links)
	}
	view.steering = func() ([]Steering, error) { return v.readSteering(view) }
	view.conntrack = v.readConntrack
	view.online = v.onlineCPUs
	view.sysctl = func(folder string) (int, error) { return v.sysctlFolder(view, folder) }
	defer v.endVisit()
	fn(view)
	return nil
}

// endVisit gives back what was opened for one visit.
func (v *Visitor) endVisit() {
	if v.lent != nil {
		v.lent.close()
		v.lent = nil
	}
	if v.route != nil {
		v.route.close()
		v.route = nil
	}
}

// outside runs fn with what the folder /proc/PID/net of one of n's processes shows, and returns why that is all.
func (v *Visitor) outside(n *Namespace, fn func(*View)) error {
	denied := fmt.Errorf("enter %s: %w", n.Name, ErrDenied)
	for _, pid := range n.pids {
		// The folder stays that process's: should it end, reads fail instead of showing whoever gets its number.
		net, err := unix.Open(v.proc+"/"+strconv.Itoa(pid)+"/net", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if !v.shows(net, pid, n) {
			unix.Close(net)
			continue
		}
		v.files.reset()
		view := &View{Namespace: n, proc: v.proc, sys: v.sys, net: net, files: &v.files}
		view.links = func() ([]Link, bool, error) {
			b, err := view.NetFile("dev")
			if err != nil {
				return nil, false, err
			}
			links, capped, err := parseNetDev(b, v.maxDevices)
			if err != nil {
				return nil, false, fmt.Errorf("%w: %w", ErrParse, err)
			}
			return links, capped, nil
		}
		view.conntrack = func() (*Conntrack, error) { return nil, denied }
		fn(view)
		unix.Close(net)
		return denied
	}
	if len(n.pids) > 0 {
		return fmt.Errorf("read %s: %w", n.Name, ErrGone)
	}
	return denied
}

// shows tells whether the net folder is still that of n: the process may have ended, and its number gone to another.
func (v *Visitor) shows(net, pid int, n *Namespace) bool {
	var st unix.Stat_t
	if n.byProcfs {
		err := unix.Fstatat(net, "netstat", &st, 0)
		return err == nil && Key{Dev: st.Dev, Ino: st.Ino} == n.Key
	}
	err := unix.Stat(v.proc+"/"+strconv.Itoa(pid)+"/ns/net", &st)
	return err == nil && Key{Dev: st.Dev, Ino: st.Ino} == n.Key
}

// readLinks reads the devices of the namespace that the thread is in.
func (v *Visitor) readLinks(view *View) (links []Link, capped bool, err error) {
	if view.Namespace.Host {
		if v.host == nil {
			if v.host, err = newLinkTable(v.buf); err != nil {
				return nil, false, err
			}
		}
		links, err = v.host.read()
	} else {
		var c *conn
		if c, err = v.routeConn(); err != nil {
			return nil, false, err
		}
		links, capped, err = dumpLinks(c, v.links, v.maxDevices)
		v.links = links
		if capped { // the rest of the dump is still in the socket
			c.close()
			v.route = nil
		}
	}
	if err != nil {
		return nil, false, err
	}
	v.addSpeeds(links, view)
	return links, capped, nil
}

// readOffloads reads the features of the devices of the namespace that the thread is in.
func (v *Visitor) readOffloads(view *View) ([]Offloads, error) {
	links, _, err := view.Links()
	if err != nil {
		return nil, err
	}
	c, err := dial(unix.NETLINK_GENERIC, 0, v.buf)
	if err != nil {
		return nil, err
	}
	defer c.close()
	if v.features == nil {
		if v.features, err = readFeatureNames(c); err != nil {
			return nil, err
		}
	}
	return dumpOffloads(c, v.features, links)
}

// routeConn returns the socket of this visit for links and qdiscs.
func (v *Visitor) routeConn() (*conn, error) {
	if v.route == nil {
		c, err := dial(unix.NETLINK_ROUTE, 0, v.buf)
		if err != nil {
			return nil, err
		}
		v.route = c
	}
	return v.route, nil
}

// readQdiscs reads the queueing disciplines of the namespace that the thread is in.
func (v *Visitor) readQdiscs(view *View) (qdiscs []Qdisc, undecoded int, err error) {
	links, _, err := view.Links()
	if err != nil {
		return nil, 0, err
	}
	c, err := v.routeConn()
	if err != nil {
		return nil, 0, err
	}
	if qdiscs, undecoded, err = dumpQdiscs(c, links); err != nil {
		return nil, 0, err
	}
	readClasses(c, links, qdiscs)
	return qdiscs, undecoded, nil
}

// readConntrack asks ctnetlink. That would make the kernel load its modules for it, but a node that tracks nothing shall stay
// so: hence the look whether they are there.
func (v *Visitor) readConntrack() (*Conntrack, error) {
	if !v.tracks {
		if err := unix.Access(v.proc+"/sys/net/netfilter/nf_conntrack_max", unix.F_OK); err != nil {
			return nil, fmt.Errorf("conntrack: %w", ErrUnsupported)
		}
		v.tracks = true
	}
	return netlinkConntrack(v.buf)
}

// addSpeeds fills in the speed of physical devices. A virtual device has none: what a veth reports is a constant.
func (v *Visitor) addSpeeds(links []Link, view *View) {
	var client *ethtool.Client
	for i := range links {
		l := &links[i]
		if l.Kind != KindPhysical || !l.Carrier {
			continue
		}
		key := speedKey{cookie: view.Cookie, index: l.Index, changes: l.CarrierChanges}
		speed, known := v.speeds[key]
		if !known || view.Cookie == 0 {
			if client == nil {
				client, _ = ethtool.New() // fails before Linux 5.6, which lacks ethtool over netlink
			}
			if len(v.speeds) >= maxSpeeds {
				clear(v.speeds)
			}
			speed = v.speed(client, l, view.Namespace.Host)
			v.speeds[key] = speed
		}
		l.SpeedMegabits = speed
	}
	if client != nil {
		client.Close()
	}
}

// speed asks for the speed of one device, and returns 0 if it is unknown: virtual hardware answers -1 or an error.
func (v *Visitor) speed(client *ethtool.Client, l *Link, host bool) int {
	if client != nil {
		mode, err := client.LinkMode(ethtool.Interface{Index: int(l.Index)})
		if err != nil {
			return 0
		}
		return max(mode.SpeedMegabits, 0)
	}
	if !host {
		return 0 // sysfs shows the namespace that mounted it, the host's
	}
	b, err := readFile(unix.AT_FDCWD, v.sys+"/class/net/"+l.Name+"/speed", nil)
	if err != nil {
		return 0
	}
	speed, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return max(speed, 0)
}
