// Package netns finds the network namespaces of a node, enters them, and hands collectors a View of each. Nothing here keeps
// a namespace alive past the visit: no descriptor of a namespace, of its /proc files or of a socket inside it is kept.
package netns

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// HostName is the name of the node's own namespace, the one that process 1 lives in.
const HostName = "host"

// maxName bounds a name that comes from outside, in bytes.
const maxName = 200

// The ways in which a namespace is found.
const (
	SourceProcess = "process" // a process lives in it
	SourceMount   = "mount"   // only a bind mount keeps it
)

// Namespace is one network namespace as one scrape found it.
type Namespace struct {
	Key
	Name       string // unique in its scrape, valid UTF-8
	Host       bool
	Source     string
	Processes  int
	Containers []Container // whom it belongs to; empty if unknown

	byProcfs bool   // Key is that of its /proc/PID/net, as the kernel does not show us ns/net
	pids     []int  // a few of its processes, lowest first
	mount    string // where it is mounted, if it is
	mountNS  string // name of that mount, if the folder is one whose names mean something
}

// Inode returns the namespace's inode as `ip netns identify` and lsns print it, or "" where the kernel hides it.
func (n *Namespace) Inode() string {
	if n.byProcfs {
		return ""
	}
	return fmt.Sprint(n.Ino)
}

// Container is what a runtime tells of one container.
type Container struct {
	ID, Name, Runtime string
	PID               int
	key               Key    // the namespace that PID was seen in when it was known to be the container's
	joins             string // id of the container whose namespace it shares
	created           int64
}

// keptPIDs is how many processes of a namespace are remembered, as ways into it should one of them end meanwhile.
const keptPIDs = 4

// addPID counts a process. The caller offers them in any order.
func (n *Namespace) addPID(pid int) {
	n.Processes++
	at, _ := slices.BinarySearch(n.pids, pid)
	if at < keptPIDs {
		n.pids = slices.Insert(n.pids, at, pid)
		n.pids = n.pids[:min(len(n.pids), keptPIDs)]
	}
}

// firstPID returns the lowest process, or 0.
func (n *Namespace) firstPID() int {
	if len(n.pids) == 0 {
		return 0
	}
	return n.pids[0]
}

// assignNames gives each namespace the best name that is known, and makes them unique.
func assignNames(all []*Namespace) {
	for _, n := range all {
		n.Name = n.bestName()
	}
	for again := true; again; { // a name made so may be that of another, as somebody may choose the name a@1
		again = false
		taken := map[string]int{}
		for _, n := range all {
			taken[n.Name]++
		}
		for _, n := range all {
			if taken[n.Name] > 1 {
				n.Name = fmt.Sprintf("%s@%d", n.Name, n.Ino)
				again = true
			}
		}
	}
	slices.SortFunc(all, func(a, b *Namespace) int {
		if a.Host != b.Host {
			return map[bool]int{true: -1, false: 1}[a.Host]
		}
		return cmp.Compare(a.Name, b.Name)
	})
}

func (n *Namespace) bestName() string {
	switch {
	case n.Host:
		return HostName
	case len(n.Containers) > 0:
		return "container:" + cleanName(n.Containers[0].Name)
	case n.mountNS != "":
		return "named:" + cleanName(n.mountNS)
	case n.byProcfs:
		return fmt.Sprintf("procfs:%d", n.Ino)
	default:
		return fmt.Sprintf("inode:%d", n.Ino)
	}
}

// cleanName makes a name from outside fit for a label: valid UTF-8, of bounded length.
func cleanName(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	for len(s) > maxName {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}
