package nettest

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	relayDev = "tun0"
	// relayQueue is how many packets wait for the relay. It is more than TCP has under way, as a relay without faults must
	// lose nothing.
	relayQueue = 10000
	// relayIdle is how long a packet is held for want of later ones. It is short against retransmission timers.
	relayIdle = 20 * time.Millisecond
)

// RelayOptions says what a Relay does to data packets, which are TCP packets with a payload. Each direction counts its own.
// Zero means never; the zero RelayOptions make a faithful relay.
type RelayOptions struct {
	HoldEvery      int // hold back every n-th data packet ...
	HoldBy         int // ... until so many later ones have passed
	DropEvery      int
	DuplicateEvery int
}

// Relay joins two namespaces by a program that forwards packets, and reorders, loses or repeats exactly those it was told
// to. Unlike netem it needs no module, and what it did can be counted.
//
//	A tun0 ---- relay ---- tun0 B
type Relay struct {
	A, B                      *NS
	AddrA, AddrB              string
	Held, Dropped, Duplicated atomic.Uint64

	opts RelayOptions
}

// NewRelay makes two namespaces and the relay between them.
func NewRelay(t testing.TB, opts RelayOptions) *Relay {
	t.Helper()
	r := &Relay{A: New(t), B: New(t), opts: opts}
	subnet := Subnet()
	r.AddrA, r.AddrB = subnet+".1", subnet+".2"
	a, b := tun(t, r.A, r.AddrA), tun(t, r.B, r.AddrB)
	var pumps sync.WaitGroup
	pumps.Go((&pump{relay: r, from: a, to: b}).run)
	pumps.Go((&pump{relay: r, from: b, to: a}).run)
	t.Cleanup(func() {
		a.Close()
		b.Close()
		pumps.Wait()
	})
	return r
}

// tun makes a TUN device with an address. The file is closed with the test at the latest: it keeps the namespace alive.
func tun(t testing.TB, n *NS, ip string) *os.File {
	t.Helper()
	var f *os.File
	n.do(t, "make "+relayDev, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("open tun: %w", err)
		}
		req, err := unix.NewIfreq(relayDev)
		if err == nil {
			req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
		}
		if err != nil {
			unix.Close(fd)
			return fmt.Errorf("make tun: %w", err)
		}
		// Only from here on can the runtime poll it, so that Close ends a Read.
		f = os.NewFile(uintptr(fd), relayDev)
		l, err := netlink.LinkByName(relayDev)
		if err != nil {
			return err
		}
		return netlink.LinkSetTxQLen(l, relayQueue)
	})
	t.Cleanup(func() { f.Close() })
	n.MTU(t, relayDev, 1500)
	n.Addr(t, relayDev, ip+"/24")
	n.Up(t, relayDev)
	return f
}

// pump is one direction of a relay.
type pump struct {
	relay    *Relay
	from, to *os.File
	seen     int // data packets
	held     []heldPacket
}

// heldPacket waits until so many later data packets have passed.
type heldPacket struct {
	packet []byte
	left   int
}

// run forwards until the file is closed.
func (p *pump) run() {
	buf := make([]byte, 2048)
	for {
		n, err := p.from.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			p.release(func(*heldPacket) bool { return true })
		case err != nil:
			return
		case isData(buf[:n]):
			p.data(buf[:n])
		default:
			p.send(buf[:n])
		}
	}
}

// send writes a packet. One that cannot be written is lost, as it would be on a wire; the tests see it in the counters.
func (p *pump) send(packet []byte) { _, _ = p.to.Write(packet) }

// data does to a data packet what the options want.
func (p *pump) data(packet []byte) {
	p.seen++
	r := p.relay
	switch {
	case nth(p.seen, r.opts.DropEvery):
		r.Dropped.Add(1)
		return
	case nth(p.seen, r.opts.HoldEvery):
		r.Held.Add(1)
		p.held = append(p.held, heldPacket{slices.Clone(packet), r.opts.HoldBy})
		_ = p.from.SetReadDeadline(time.Now().Add(relayIdle))
		return
	case nth(p.seen, r.opts.DuplicateEvery):
		r.Duplicated.Add(1)
		p.send(packet)
	}
	p.send(packet)
	if len(p.held) > 0 {
		p.release(func(h *heldPacket) bool { h.left--; return h.left <= 0 })
	}
}

// release sends the held packets that are due.
func (p *pump) release(due func(*heldPacket) bool) {
	kept := p.held[:0]
	for _, h := range p.held {
		if due(&h) {
			p.send(h.packet)
		} else {
			kept = append(kept, h)
		}
	}
	p.held = kept
	if len(p.held) == 0 {
		_ = p.from.SetReadDeadline(time.Time{})
	}
}

func nth(n, every int) bool { return every > 0 && n%every == 0 }

// isData tells whether an IP packet carries TCP payload.
func isData(p []byte) bool {
	if len(p) < 20 || p[0]>>4 != 4 || p[9] != unix.IPPROTO_TCP {
		return false
	}
	ip := int(p[0]&0xf) * 4
	return len(p) >= ip+20 && len(p) > ip+int(p[ip+12]>>4)*4
}
