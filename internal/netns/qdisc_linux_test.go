package netns

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// nest makes one attribute of several parts.
func nest(typ uint16, parts ...[]byte) []byte { return attr(typ, slices.Concat(parts...)...) }

func u32s(values ...uint32) (b []byte) {
	for _, v := range values {
		b = binary.NativeEndian.AppendUint32(b, v)
	}
	return b
}

func u64s(values ...uint64) (b []byte) {
	for _, v := range values {
		b = binary.NativeEndian.AppendUint64(b, v)
	}
	return b
}

// qdiscMessage encodes an RTM_NEWQDISC message, with the older statistics behind the newer ones as the kernel sends them.
func qdiscMessage(handle, parent uint32, kind string, options, app []byte) []byte {
	stats := nest(tcaStats2,
		nest(tcaStatsBasic, u64s(1000), u32s(10, 0)),
		nest(tcaStatsQueue, u32s(3, 4500, 7, 2, 9)),
		nest(tcaStatsPkt64, u64s(1<<32+10)),
		nest(tcaStatsApp, app))
	legacy := nest(3, u64s(1000), u32s(10, 7, 9, 0, 0, 3, 4500))
	message := append(u32s(0, 2, handle, parent, 1), nest(tcaKind, []byte(kind+"\x00"))...)
	return append(append(append(message, nest(tcaOptions, options)...), stats...), legacy...)
}

func TestQdiscDecode(t *testing.T) {
	counted := Qdisc{Bytes: 1000, Packets: 1<<32 + 10, Waiting: 3, Backlog: 4500, Drops: 7, Requeues: 2, Overlimits: 9}
	with := func(change func(*Qdisc)) Qdisc {
		q := counted
		change(&q)
		return q
	}
	for name, test := range map[string]struct {
		message []byte
		want    Qdisc
	}{
		// 10 Mbit/s with a burst of 32,768 bytes, which take 26.2 ms: 409,600 ticks.
		"tbf": {
			qdiscMessage(0x80010000, tcRoot, "tbf", nest(tcaTBFParms, u32s(0, 0, 1250000, 0, 0, 0, 64018, 409600, 0)), nil),
			with(func(q *Qdisc) { q.Kind, q.Parent, q.Rate, q.Burst, q.LimitBytes = "tbf", "root", 1250000, 32768, 64018 }),
		},
		"tbf beyond 32 bits": {
			qdiscMessage(0x80010000, 0x10002, "tbf", append(nest(tcaTBFParms, u32s(0, 0, 1<<32-1, 0, 0, 0, 1, 1, 0)), nest(tcaTBFRate64, u64s(1<<33))...), nil),
			with(func(q *Qdisc) { q.Kind, q.Parent, q.Rate, q.Burst, q.LimitBytes = "tbf", "1:2", 1<<33, 549, 1 }),
		},
		"pfifo": {
			qdiscMessage(0, 0x3, "pfifo", u32s(500), nil),
			with(func(q *Qdisc) { q.Kind, q.Parent, q.LimitPackets = "pfifo", ":3", 500 }),
		},
		"clsact": {
			qdiscMessage(0xFFFF0000, tcIngress, "clsact", nil, nil),
			with(func(q *Qdisc) { q.Kind, q.Parent = "clsact", "ingress" }),
		},
		"fq_codel": {
			qdiscMessage(0, tcRoot, "fq_codel", nest(2, u32s(10240)), u32s(0, 1514, 11, 12, 13)),
			with(func(q *Qdisc) {
				q.Kind, q.Parent, q.LimitPackets = "fq_codel", "root", 10240
				q.App = []AppStat{{"maxpacket", 1514}, {"drop_overlimit", 11}, {"ecn_mark", 12}, {"new_flow_count", 13}}
			}),
		},
		"fq_codel, a class": {
			qdiscMessage(0, tcRoot, "fq_codel", nest(2, u32s(10240)), u32s(1, 5)),
			with(func(q *Qdisc) { q.Kind, q.Parent, q.LimitPackets = "fq_codel", "root", 10240 }),
		},
		"fq": {
			qdiscMessage(0, tcRoot, "fq", nest(1, u32s(10000)), u64s(1, 2, 3, 4, 5, 6, 7, 8)),
			with(func(q *Qdisc) {
				q.Kind, q.Parent, q.LimitPackets = "fq", "root", 10000
				q.App = []AppStat{{"gc_flows", 1}, {"highprio_packets", 2}, {"tcp_retrans", 3}, {"throttled", 4}, {"flows_plimit", 5}, {"pkts_too_long", 6}, {"allocation_errors", 7}}
			}),
		},
		"a kind that nobody knows": {
			qdiscMessage(0, tcRoot, "new\xff", u32s(1), nil),
			with(func(q *Qdisc) { q.Kind, q.Parent = "new\uFFFD", "root" }),
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got Qdisc
			if err := got.decode(test.message); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestQdiscWithoutCounters(t *testing.T) {
	message := append(u32s(0, 2, 0, tcRoot, 1), nest(tcaKind, []byte("odd\x00"))...)
	for name, b := range map[string][]byte{
		"no counters": message,
		"short":       append(message, nest(tcaStats2, nest(tcaStatsBasic, u64s(1)))...),
		"no kind":     u32s(0, 2, 0, tcRoot, 1),
	} {
		if err := new(Qdisc).decode(b); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzQdiscDecode(f *testing.F) {
	f.Add(qdiscMessage(0x80010000, tcRoot, "tbf", nest(tcaTBFParms, u32s(0, 0, 1250000, 0, 0, 0, 64018, 409600, 0)), nil)[tcmsgSize:])
	f.Add(qdiscMessage(0, tcRoot, "fq_codel", nest(2, u32s(10240)), u32s(0, 1514, 11))[tcmsgSize:])
	f.Fuzz(func(_ *testing.T, b []byte) {
		_ = new(Qdisc).decode(append(make([]byte, tcmsgSize), b...))
	})
}

func TestCPUMask(t *testing.T) {
	online := map[int]bool{0: true, 1: true, 33: true}
	for mask, want := range map[CPUMask][2]int{"0": {0, 0}, "3": {2, 0}, "f": {4, 2}, "00000002,00000001": {2, 0}, "80000000,00000000,00000000": {1, 1}} {
		cpus, offline, err := mask.Count(online)
		if err != nil || cpus != want[0] || offline != want[1] {
			t.Errorf("%s: %d CPUs, %d of them offline, %v; want %v", mask, cpus, offline, err, want)
		}
	}
	for _, mask := range []CPUMask{"", "x", "1,", "100000000"} {
		if _, _, err := mask.Count(online); err == nil {
			t.Errorf("%q: no error", mask)
		}
	}
}

func TestParseCPUs(t *testing.T) {
	got, err := parseCPUs([]byte("0-2,5,8-9\n"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[int]bool{0: true, 1: true, 2: true, 5: true, 8: true, 9: true}, got); diff != "" {
		t.Error(diff)
	}
	for _, list := range []string{"", "a", "3-1", "-1", "0-999999999"} {
		if _, err := parseCPUs([]byte(list)); err == nil {
			t.Errorf("%q: no error", list)
		}
	}
}

// Settings of tunnels come from namespaces that anybody may have made.
func FuzzTunnelDecode(f *testing.F) {
	f.Add("vxlan", append(nest(1, u32s(42)), nest(2, []byte{198, 18, 0, 1})...))
	f.Add("gre", append(nest(3, []byte{0x20, 0}), nest(7, make([]byte, 16))...))
	f.Fuzz(func(_ *testing.T, kind string, b []byte) {
		if decode, ok := tunnelKinds[kind]; ok {
			decode(&Tunnel{}, b)
		}
		_ = stringSet(b)
	})
}
