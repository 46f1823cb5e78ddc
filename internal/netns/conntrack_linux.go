package netns

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The connection tracking counters, in the order of enum ctattr_stats_cpu (include/uapi/linux/netfilter/nfnetlink_conntrack.h).
// The kernel keeps each in 32 bits for each CPU.
const (
	ConntrackSearched = iota + 1 // no longer counted
	ConntrackFound
	ConntrackNew // no longer counted
	ConntrackInvalid
	ConntrackIgnore     // no longer counted
	ConntrackDelete     // no longer counted
	ConntrackDeleteList // no longer counted
	ConntrackInsert
	ConntrackInsertFailed
	ConntrackDrop
	ConntrackEarlyDrop
	ConntrackError
	ConntrackSearchRestart
	ConntrackClashResolve // Linux 5.9
	ConntrackChainTooLong // Linux 5.15
	conntrackCounters
)

// Conntrack is the connection tracking of one namespace: how many connections it tracks, and its counters summed over CPUs.
type Conntrack struct {
	Entries  uint64
	Counters [conntrackCounters]uint64
	Has      [conntrackCounters]bool // which of them this kernel has
}

func (c *Conntrack) add(counter int, value uint64) {
	c.Counters[counter] += value
	c.Has[counter] = true
}

const (
	nfnlSubsysCtnetlink = 1 << 8 // NFNL_SUBSYS_CTNETLINK
	ctGetStatsCPU       = 4      // IPCTNL_MSG_CT_GET_STATS_CPU
	ctGetStats          = 5      // IPCTNL_MSG_CT_GET_STATS
	ctaStatsGlobalCount = 1      // CTA_STATS_GLOBAL_ENTRIES
	nfgenmsgSize        = 4      // sizeof(struct nfgenmsg)
)

// netlinkConntrack asks ctnetlink, which takes CAP_NET_ADMIN, in the namespace of this thread.
func netlinkConntrack(buf []byte) (*Conntrack, error) {
	c, err := dial(unix.NETLINK_NETFILTER, 0, buf)
	if err != nil {
		return nil, err
	}
	defer c.close()
	ct := &Conntrack{}
	ask := func(typ netlink.HeaderType, flags netlink.HeaderFlags, each func(attrs []byte)) error {
		m := netlink.Message{
			Header: netlink.Header{Type: nfnlSubsysCtnetlink | typ, Flags: flags},
			Data:   make([]byte, nfgenmsgSize),
		}
		return c.request(m, func(_ uint16, data []byte) bool {
			if len(data) > nfgenmsgSize {
				each(data[nfgenmsgSize:])
			}
			return true
		})
	}
	if err := ask(ctGetStatsCPU, netlink.Dump, func(attrs []byte) {
		for counter := ConntrackSearched; counter < conntrackCounters; counter++ {
			if b := attribute(attrs, uint16(counter)); len(b) == 4 {
				ct.add(counter, uint64(binary.BigEndian.Uint32(b)))
			}
		}
	}); err != nil {
		return nil, fmt.Errorf("conntrack counters: %w", err)
	}
	err = fmt.Errorf("conntrack entries: %w", ErrUnsupported)
	if askErr := ask(ctGetStats, 0, func(attrs []byte) {
		if b := attribute(attrs, ctaStatsGlobalCount); len(b) == 4 {
			ct.Entries, err = uint64(binary.BigEndian.Uint32(b)), nil
		}
	}); askErr != nil {
		err = fmt.Errorf("conntrack entries: %w", askErr)
	}
	if err != nil {
		return nil, err
	}
	return ct, nil
}

// procConntrack maps the columns of net/stat/nf_conntrack. Kernels name them anew from time to time: those not listed are
// either no longer counted or not about failures.
var procConntrack = map[string]int{
	"found": ConntrackFound, "invalid": ConntrackInvalid, "insert": ConntrackInsert,
	"insert_failed": ConntrackInsertFailed, "drop": ConntrackDrop, "early_drop": ConntrackEarlyDrop,
	"icmp_error": ConntrackError, "search_restart": ConntrackSearchRestart, "clashres": ConntrackClashResolve,
	"chainlength": ConntrackChainTooLong, // named so from the release on that counts it
}

// parseConntrack reads net/stat/nf_conntrack: a header, then one line of hexadecimal numbers for each CPU. The first column
// repeats the namespace's entries on each line.
func parseConntrack(b []byte) (*Conntrack, error) {
	header, rows, ok := bytes.Cut(b, []byte("\n"))
	columns := bytes.Fields(header)
	if !ok || len(columns) < 2 || string(columns[0]) != "entries" {
		return nil, errors.New("nf_conntrack: no header line")
	}
	ct := &Conntrack{}
	seen := false
	for line := range bytes.Lines(rows) {
		fields := bytes.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) != len(columns) {
			return nil, fmt.Errorf("nf_conntrack: %d columns under a header of %d", len(fields), len(columns))
		}
		for i, field := range fields {
			v, err := strconv.ParseUint(string(field), 16, 64)
			if err != nil {
				return nil, fmt.Errorf("nf_conntrack: column %s: %w", columns[i], err)
			}
			if i == 0 {
				ct.Entries = v
			} else if counter, ok := procConntrack[string(columns[i])]; ok {
				ct.add(counter, v)
			}
		}
		seen = true
	}
	if !seen {
		return nil, errors.New("nf_conntrack: no line for any CPU")
	}
	return ct, nil
}
