package nettest

import (
	"os"
	"strconv"
	"testing"
	"time"
)

func TestRelay(t *testing.T) {
	const (
		ofo      = "TcpExtTCPOFOQueue"
		reorder  = "TcpExtTCPSACKReorder"
		fast     = "TcpExtTCPFastRetrans"
		dsackOld = "TcpExtTCPDSACKOldSent"
	)
	for _, tt := range []struct {
		name            string
		opts            RelayOptions
		sender          []string // counters of the sender that rise
		senderStays     []string // and that stay
		receiver        []string
		receiverStays   []string
		held, dup, drop bool
	}{
		{name: "clean", senderStays: []string{reorder, fast}, receiverStays: []string{ofo}},
		{name: "hold", opts: RelayOptions{HoldEvery: 50, HoldBy: 3}, held: true,
			sender: []string{reorder}, receiver: []string{ofo}},
		{name: "drop", opts: RelayOptions{DropEvery: 200}, drop: true,
			sender: []string{fast}, senderStays: []string{reorder}, receiver: []string{ofo}},
		{name: "duplicate", opts: RelayOptions{DuplicateEvery: 100}, dup: true,
			receiver: []string{dsackOld}, receiverStays: []string{ofo}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := NewRelay(t, tt.opts)
			sender, receiver := r.A.Nstat(t), r.B.Nstat(t)
			const size = 20 << 20
			if got := TCPFlow(t, r.A, r.B, r.AddrB, FlowOptions{Bytes: size, Congestion: "reno"}); got != size {
				t.Errorf("%d bytes arrived", got)
			}
			sender, receiver = Delta(sender, r.A.Nstat(t)), Delta(receiver, r.B.Nstat(t))
			t.Logf("held %d, dropped %d, duplicated %d", r.Held.Load(), r.Dropped.Load(), r.Duplicated.Load())
			t.Logf("sender: %v", sender)
			t.Logf("receiver: %v", receiver)
			check(t, "sender", sender, tt.sender, tt.senderStays)
			check(t, "receiver", receiver, tt.receiver, tt.receiverStays)
			if (r.Held.Load() > 0) != tt.held || (r.Dropped.Load() > 0) != tt.drop || (r.Duplicated.Load() > 0) != tt.dup {
				t.Error("relay did something else")
			}
		})
	}
}

func check(t *testing.T, who string, delta map[string]uint64, rise, stay []string) {
	t.Helper()
	for _, name := range rise {
		if delta[name] == 0 {
			t.Errorf("%s: %s did not rise", who, name)
		}
	}
	for _, name := range stay {
		if delta[name] != 0 {
			t.Errorf("%s: %s rose by %d", who, name, delta[name])
		}
	}
}

func TestTCPFlow(t *testing.T) {
	a, b := Pair(t)
	if got := TCPFlow(t, a, b, b.IP, FlowOptions{Duration: 200 * time.Millisecond}); got == 0 {
		t.Error("nothing arrived in time")
	}
	before := a.Nstat(t)
	if got := TCPFlow(t, a, b, b.IP, FlowOptions{Bytes: 12345, Duration: 10 * time.Second, Congestion: "bbr"}); got != 12345 {
		t.Errorf("%d bytes arrived", got)
	}
	check(t, "sender", Delta(before, a.Nstat(t)), []string{"TcpActiveOpens"}, []string{"TcpOutRsts", "TcpEstabResets"})
}

// TestTCPFlowStalled has large packets vanish: the flow ends on time, and neither end keeps its namespace.
func TestTCPFlowStalled(t *testing.T) {
	a, r, b := Routed(t)
	r.MTU(t, "eth1", 1300)
	r.NFT(t, `
table ip hole {
	chain output {
		type filter hook output priority filter
		icmp type destination-unreachable drop
	}
}`)
	a.Exec(t, "ethtool", "-K", "eth0", "tso", "off", "gso", "off")
	dev := sentinel(t, a)
	start := time.Now()
	if got := TCPFlow(t, a, b, b.IP, FlowOptions{Duration: 300 * time.Millisecond, Congestion: "reno"}); got != 0 {
		t.Errorf("%d bytes arrived through the hole", got)
	}
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("took %v", took)
	}
	a.Delete(t)
	Host().WaitNoLink(t, dev, 10*time.Second)
}

func TestListenOverflow(t *testing.T) {
	a, b := Pair(t)
	server, client, host := b.Nstat(t), a.Nstat(t), Host().Nstat(t)
	ListenOverflow(t, b, a, b.IP, 1, 20)
	if got := Delta(server, b.Nstat(t)); got["TcpExtListenOverflows"] == 0 || got["TcpExtListenDrops"] == 0 {
		t.Errorf("server: %v", got)
	}
	if got := Delta(client, a.Nstat(t)); got["TcpExtListenOverflows"] != 0 {
		t.Errorf("client: %v", got)
	}
	if got := Delta(host, Host().Nstat(t)); got["TcpExtListenOverflows"] != 0 {
		t.Errorf("host: %v", got)
	}
}

func TestConntrackLimit(t *testing.T) {
	a, r, b := Routed(t)
	r.TrackState(t)
	before, host := r.ConntrackStats(t), Host().ConntrackStats(t)
	var count uint64
	const limit = 97
	WithConntrackLimit(t, limit, func() {
		if got := UDPBurst(t, a, b.IP, 10000, 1000); got != 1000 {
			t.Errorf("sent %d", got)
		}
		count = r.ConntrackCount(t)
	})
	if got := Delta(before, r.ConntrackStats(t)); got["drop"] == 0 {
		t.Errorf("router: %v", got)
	}
	if count == 0 || count > limit {
		t.Errorf("router tracked %d", count)
	}
	if got := Delta(host, Host().ConntrackStats(t)); got["drop"] != 0 {
		t.Errorf("host: %v", got)
	}
	restored(t, limit)
}

func TestConntrackLimitAfterPanic(t *testing.T) {
	const limit = 99991
	func() {
		defer func() { _ = recover() }()
		WithConntrackLimit(t, limit, func() { panic("test") })
	}()
	restored(t, limit)
	WithConntrackLimit(t, limit+1, func() {}) // the lock is free again
}

func TestConntrackLimitIsLocked(t *testing.T) {
	Root(t)
	f, err := os.OpenFile(conntrackMax, os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	WithConntrackLimit(t, 99990, func() {
		if err := lockFile(f, 0); err == nil {
			t.Error("two tests hold the limit")
		}
	})
}

// restored fails if the node's limit is still the test's. Tests of other packages may change it too at any time.
func restored(t *testing.T, limit int) {
	t.Helper()
	if got := Host().SysctlGet(t, "net.netfilter.nf_conntrack_max"); got == strconv.Itoa(limit) {
		t.Errorf("the limit is still %s", got)
	}
}
