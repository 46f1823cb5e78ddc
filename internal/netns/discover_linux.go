package netns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Discovery finds every network namespace that a process lives in or that is mounted in a known folder.
type Discovery struct {
	Proc     string   // where procfs is mounted, showing the node's processes
	Named    []string // folders of bind mounts whose names mean something, as /run/netns
	Unnamed  []string // folders of bind mounts with names that say nothing, as Docker's
	Docker   *Docker  // names of containers; nil for none
	MaxNetns int      // how many namespaces to report at most; the host's is always there
}

// Found is what one discovery saw.
type Found struct {
	Namespaces []*Namespace // host first, then by name
	HostKnown  bool         // whether one of them is known to be the host's
	Home       Key          // the namespace that this program runs in
	// Unidentified counts the namespaces of which no process shows its ns/net (it takes CAP_SYS_PTRACE).
	Unidentified int
	Capped       int     // namespaces left out because of MaxNetns
	Errs         []error // what could not be looked at; each cost only itself
}

// HomeIsHost tells whether this program runs in the host's namespace.
func (f *Found) HomeIsHost() bool {
	return f.HostKnown && len(f.Namespaces) > 0 && f.Namespaces[0].Key == f.Home
}

// Discover looks for namespaces anew. Processes and mounts that vanish meanwhile are normal. It fails only if procfs
// itself cannot be read.
func (d *Discovery) Discover(ctx context.Context) (*Found, error) {
	proc, err := os.Open(d.Proc)
	if err != nil {
		return nil, fmt.Errorf("open procfs: %w", err)
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", d.Proc, err)
	}
	s := search{proc: int(proc.Fd()), found: &Found{}, byKey: map[Key]*Namespace{}, pidKey: map[int]Key{}}
	if home, err := s.stat("thread-self/ns/net"); err == nil {
		s.found.Home = home
	}
	s.processes(names)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.markHost()
	for _, dir := range d.Named {
		s.mounts(dir, true)
	}
	for _, dir := range d.Unnamed {
		s.mounts(dir, false)
	}
	if d.Docker != nil {
		if err := d.Docker.identify(ctx, &s); err != nil {
			s.found.Errs = append(s.found.Errs, err)
		}
	}
	return s.result(d.MaxNetns), nil
}

// initPIDNamespace is the inode of the node's first process namespace, PROC_PID_INIT_INO (include/linux/proc_ns.h).
const initPIDNamespace = 0xEFFFFFFC

// OwnProcessesOnly tells whether procfs shows no more than the container that this program runs in, so that its process 1 is
// not the node's.
func (d *Discovery) OwnProcessesOnly() bool {
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(d.Proc, "self/ns/pid"), &st); err != nil || st.Ino == initPIDNamespace {
		return false
	}
	status, err := os.ReadFile(filepath.Join(d.Proc, "self/status"))
	if err != nil {
		return false
	}
	// NSpid lists the process's number in each namespace from that of this procfs down to its own.
	for line := range strings.Lines(string(status)) {
		if numbers, ok := strings.CutPrefix(line, "NSpid:"); ok {
			return len(strings.Fields(numbers)) == 1
		}
	}
	return false
}

// search is the state of one discovery.
type search struct {
	proc   int // descriptor of the procfs root
	found  *Found
	byKey  map[Key]*Namespace
	order  []*Namespace
	pidKey map[int]Key
}

func (s *search) stat(path string) (Key, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(s.proc, path, &st, 0); err != nil {
		return Key{}, err
	}
	return Key{Dev: st.Dev, Ino: st.Ino}, nil
}

// namespace returns the namespace of key, new or known.
func (s *search) namespace(key Key, source string) *Namespace {
	n := s.byKey[key]
	if n == nil {
		n = &Namespace{Key: key, Source: source}
		s.byKey[key] = n
		s.order = append(s.order, n)
	}
	return n
}

// processes sorts all processes by their namespace.
func (s *search) processes(names []string) {
	var hidden []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		key, err := s.stat(name + "/ns/net")
		switch {
		case err == nil:
			s.add(pid, key)
		case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
			hidden = append(hidden, pid)
		}
	}
	s.hidden(hidden)
}

func (s *search) add(pid int, key Key) {
	s.namespace(key, SourceProcess).addPID(pid)
	s.pidKey[pid] = key
}

// hidden sorts the processes whose ns/net the kernel refuses to show. The inode of /proc/PID/net/netstat stands in for it:
// procfs has one such file for each live namespace and shows it to everybody.
func (s *search) hidden(pids []int) {
	if len(pids) == 0 {
		return
	}
	known := map[Key]Key{}
	for _, n := range s.order {
		if file, ok := s.netstat(n.pids...); ok {
			known[file] = n.Key
		}
	}
	for _, pid := range pids {
		file, ok := s.netstat(pid)
		if !ok {
			continue
		}
		key, ok := known[file]
		if !ok {
			key, known[file] = file, file
			s.namespace(key, SourceProcess).byProcfs = true
			s.found.Unidentified++
		}
		s.add(pid, key)
	}
}

// netstat returns the key of the first readable net/netstat file of pids.
func (s *search) netstat(pids ...int) (Key, bool) {
	for _, pid := range pids {
		if key, err := s.stat(strconv.Itoa(pid) + "/net/netstat"); err == nil {
			return key, true
		}
	}
	return Key{}, false
}

// markHost marks the namespace of process 1.
func (s *search) markHost() {
	if key, ok := s.pidKey[1]; ok {
		s.byKey[key].Host = true
		s.found.HostKnown = true
	}
}

// mounts adds the namespaces that are mounted in dir. A missing folder means that nothing uses it.
func (s *search) mounts(dir string, named bool) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.found.Errs = append(s.found.Errs, classify(fmt.Errorf("list namespaces: %w", err)))
		}
		return
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		var st unix.Stat_t
		// A left-over plain file, or a mount that is not seen from here, is not on nsfs: it leads nowhere.
		if err := unix.Stat(path, &st); err != nil || st.Dev != s.found.Home.Dev {
			continue
		}
		key := Key{Dev: st.Dev, Ino: st.Ino}
		if s.byKey[key] == nil && !isNetwork(path) {
			continue
		}
		n := s.namespace(key, SourceMount)
		if n.mount == "" {
			n.mount = path
		}
		if named && n.mountNS == "" {
			n.mountNS = e.Name()
		}
	}
}

// result names and orders what was found.
func (s *search) result(limit int) *Found {
	assignNames(s.order)
	if limit > 0 && len(s.order) > limit {
		s.found.Capped = len(s.order) - limit
		s.order = slices.Delete(s.order, limit, len(s.order))
	}
	s.found.Namespaces = s.order
	return s.found
}
