package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Qdisc is one queueing discipline of a device, or a leaf of one. Rates and limits are 0 where it has none, or where this
// program does not know its kind.
type Qdisc struct {
	Device     string
	Kind       string // as tc prints it
	Parent     string // root, ingress, or the class that it is the leaf of, as 1:10
	Bytes      uint64
	Packets    uint64
	Drops      uint64 // the kernel keeps this and the next two in 32 bits
	Requeues   uint64
	Overlimits uint64
	Waiting    uint64 // packets in the queue
	Backlog    uint64 // bytes in the queue

	Rate         uint64 // bytes per second
	Burst        uint64 // bytes
	LimitBytes   uint64
	LimitPackets uint64
	App          []AppStat // numbers of the kind's own
}

// AppStat is a number that only one kind of qdisc has, under the name that tc prints.
type AppStat struct {
	Name  string
	Value uint64
}

const (
	tcmsgSize = 20 // sizeof(struct tcmsg)
	tcRoot    = 0xFFFFFFFF
	tcIngress = 0xFFFFFFF1 // also clsact

	tcaKind    = 1 // enum of include/uapi/linux/rtnetlink.h
	tcaOptions = 2
	tcaStats2  = 7

	tcaStatsBasic = 1 // enum of include/uapi/linux/gen_stats.h
	tcaStatsQueue = 3
	tcaStatsApp   = 4
	tcaStatsPkt64 = 8

	tcaHTBParms  = 1 // enum of include/uapi/linux/pkt_sched.h
	tcaHTBRate64 = 6
	tcaTBFParms  = 1 // enum of include/uapi/linux/pkt_sched.h
	tcaTBFRate64 = 4
)

// dumpQdiscs reads all queueing disciplines of the connection's namespace, for the devices in links. Those without a queue
// are left out: all their numbers are 0 for ever. One that cannot be decoded costs only itself, and is counted.
func dumpQdiscs(c *conn, links []Link) (qdiscs []Qdisc, undecoded int, err error) {
	request := netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETQDISC, Flags: netlink.Dump},
		Data:   make([]byte, tcmsgSize),
	}
	for range maxInterruptedDump {
		qdiscs, undecoded = qdiscs[:0], 0
		err = c.request(request, func(typ uint16, data []byte) bool {
			if typ != unix.RTM_NEWQDISC || len(data) < tcmsgSize {
				return true
			}
			at, ok := FindLink(links, int32(binary.NativeEndian.Uint32(data[4:])))
			if !ok {
				return true // beyond the limit of devices, or new since they were read
			}
			q := Qdisc{Device: links[at].Name}
			switch err := q.decode(data); {
			case err != nil:
				undecoded++
			case q.Kind != "noqueue":
				qdiscs = append(qdiscs, q)
			}
			return true
		})
		if !errors.Is(err, errInterrupted) {
			break
		}
	}
	if err == nil || errors.Is(err, errInterrupted) {
		// A change in the middle of the dump may show one twice, and the kernel does not always notice.
		slices.SortStableFunc(qdiscs, func(a, b Qdisc) int {
			return strings.Compare(a.Device+" "+a.Parent, b.Device+" "+b.Parent)
		})
		qdiscs = slices.CompactFunc(qdiscs, func(a, b Qdisc) bool { return a.Device == b.Device && a.Parent == b.Parent })
		err = nil
	}
	return qdiscs, undecoded, err
}

// readClasses gives the leaves of HTB classes the rate and burst of their class. A device that vanished meanwhile costs only
// itself.
func readClasses(c *conn, links []Link, qdiscs []Qdisc) {
	for i := range qdiscs {
		if qdiscs[i].Kind != "htb" {
			continue
		}
		device := qdiscs[i].Device
		at := slices.IndexFunc(links, func(l Link) bool { return l.Name == device })
		if at < 0 {
			continue
		}
		request := netlink.Message{
			Header: netlink.Header{Type: unix.RTM_GETTCLASS, Flags: netlink.Dump},
			Data:   make([]byte, tcmsgSize),
		}
		binary.NativeEndian.PutUint32(request.Data[4:], uint32(links[at].Index))
		classes := map[string]Qdisc{}
		_ = c.request(request, func(typ uint16, data []byte) bool {
			if typ == unix.RTM_NEWTCLASS && len(data) >= tcmsgSize {
				class := Qdisc{}
				class.decodeHTB(attribute(data[tcmsgSize:], tcaOptions))
				classes[parentName(binary.NativeEndian.Uint32(data[8:]), 0)] = class
			}
			return true
		})
		for j := range qdiscs {
			if class, ok := classes[qdiscs[j].Parent]; ok && qdiscs[j].Device == device && qdiscs[j].Rate == 0 {
				qdiscs[j].Rate, qdiscs[j].Burst = class.Rate, class.Burst
			}
		}
	}
}

// decodeHTB reads rate and burst of a class: struct tc_htb_opt has two struct tc_ratespec, then buffer.
func (q *Qdisc) decodeHTB(options []byte) {
	parms := attribute(options, tcaHTBParms)
	if len(parms) < 28 {
		return
	}
	q.Rate = uint64(binary.NativeEndian.Uint32(parms[8:]))
	if rate := attribute(options, tcaHTBRate64); len(rate) >= 8 {
		q.Rate = binary.NativeEndian.Uint64(rate)
	}
	q.Burst = ticks(binary.NativeEndian.Uint32(parms[24:]), q.Rate)
}

// ticks returns the bytes of a burst, which the kernel keeps as the time that it takes at the rate, in ticks of 64 ns.
func ticks(n uint32, rate uint64) uint64 { return uint64(float64(n) * 64 * float64(rate) / 1e9) }

// decode fills q from an RTM_NEWQDISC message. Counters come from TCA_STATS2 only: the older attribute after it lacks some.
func (q *Qdisc) decode(data []byte) error {
	handle := binary.NativeEndian.Uint32(data[8:])
	parent := binary.NativeEndian.Uint32(data[12:])
	attrs := data[tcmsgSize:]
	kind := attribute(attrs, tcaKind)
	if kind == nil {
		return errors.New("qdisc without a kind")
	}
	q.Kind = strings.ToValidUTF8(strings.TrimRight(string(kind), "\x00"), "\uFFFD")
	q.Parent = parentName(parent, handle)
	stats := attribute(attrs, tcaStats2)
	basic, queue := attribute(stats, tcaStatsBasic), attribute(stats, tcaStatsQueue)
	if len(basic) < 12 || len(queue) < 20 {
		return fmt.Errorf("qdisc %s without counters", q.Kind)
	}
	q.Bytes = binary.NativeEndian.Uint64(basic)
	q.Packets = uint64(binary.NativeEndian.Uint32(basic[8:]))
	if packets := attribute(stats, tcaStatsPkt64); len(packets) >= 8 {
		q.Packets = binary.NativeEndian.Uint64(packets)
	}
	for i, into := range []*uint64{&q.Waiting, &q.Backlog, &q.Drops, &q.Requeues, &q.Overlimits} {
		*into = uint64(binary.NativeEndian.Uint32(queue[4*i:]))
	}
	if decode, ok := qdiscKinds[q.Kind]; ok {
		decode(q, attribute(attrs, tcaOptions), attribute(stats, tcaStatsApp))
	}
	return nil
}

// parentName spells the place of a qdisc as tc does.
func parentName(parent, handle uint32) string {
	switch {
	case parent == tcRoot:
		return "root"
	case parent == tcIngress, handle == 0xFFFF0000:
		return "ingress"
	case parent>>16 == 0:
		return fmt.Sprintf(":%x", parent&0xFFFF)
	default:
		return fmt.Sprintf("%x:%x", parent>>16, parent&0xFFFF)
	}
}

// qdiscKinds decode what is particular to a kind, from its options and its own statistics. Both may be missing or short.
var qdiscKinds = map[string]func(q *Qdisc, options, app []byte){
	"tbf": func(q *Qdisc, options, _ []byte) {
		// struct tc_tbf_qopt: two struct tc_ratespec of 12 bytes, then limit, buffer and mtu.
		parms := attribute(options, tcaTBFParms)
		if len(parms) < 36 {
			return
		}
		q.Rate = uint64(binary.NativeEndian.Uint32(parms[8:]))
		if rate := attribute(options, tcaTBFRate64); len(rate) >= 8 {
			q.Rate = binary.NativeEndian.Uint64(rate)
		}
		q.LimitBytes = uint64(binary.NativeEndian.Uint32(parms[24:]))
		q.Burst = ticks(binary.NativeEndian.Uint32(parms[28:]), q.Rate)
	},
	"pfifo": func(q *Qdisc, options, _ []byte) { q.LimitPackets = firstWord(options) },
	"bfifo": func(q *Qdisc, options, _ []byte) { q.LimitBytes = firstWord(options) },
	"fq_codel": func(q *Qdisc, options, app []byte) {
		q.LimitPackets = firstWord(attribute(options, 2)) // TCA_FQ_CODEL_LIMIT
		// struct tc_fq_codel_xstats: a type, 0 for the qdisc's own, then words.
		if len(app) >= 4 && binary.NativeEndian.Uint32(app) == 0 {
			q.words(app[4:], 4, "maxpacket", "drop_overlimit", "ecn_mark", "new_flow_count", "new_flows_len", "old_flows_len",
				"ce_mark", "memory_usage", "drop_overmemory")
		}
	},
	"fq": func(q *Qdisc, options, app []byte) {
		q.LimitPackets = firstWord(attribute(options, 1)) // TCA_FQ_PLIMIT
		q.words(app, 8, "gc_flows", "highprio_packets", "tcp_retrans", "throttled", "flows_plimit", "pkts_too_long", "allocation_errors")
	},
}

// words reads numbers of that size, as many as there are.
func (q *Qdisc) words(b []byte, size int, names ...string) {
	for _, name := range names {
		if len(b) < size {
			return
		}
		value := firstWord(b)
		if size == 8 {
			value = binary.NativeEndian.Uint64(b)
		}
		q.App = append(q.App, AppStat{Name: name, Value: value})
		b = b[size:]
	}
}

func firstWord(b []byte) uint64 {
	if len(b) < 4 {
		return 0
	}
	return uint64(binary.NativeEndian.Uint32(b))
}
