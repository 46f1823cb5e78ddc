package nettest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dialTimeout = 5 * time.Second
	// flowTimeout bounds a transfer whose end is given in bytes.
	flowTimeout = 30 * time.Second
	// flowGrace is how long after the end of a transfer what is still under way may arrive.
	flowGrace = 2 * time.Second
)

// FlowOptions says how much to transfer. At least one of Bytes and Duration is needed; with both, what comes first ends it.
type FlowOptions struct {
	Bytes    int64
	Duration time.Duration
	// Congestion names the algorithm of both ends. The default is the namespace's. A namespace allows only the algorithms
	// in net.ipv4.tcp_allowed_congestion_control, among which reno always is.
	Congestion string
}

// TCPFlow sends bulk data to a listener at addr, an address of namespace to, and returns how much of it arrived. A transfer
// with a Duration may stall, one without fails the test unless all bytes arrive.
func TCPFlow(t testing.TB, from, to *NS, addr string, opts FlowOptions) int64 {
	t.Helper()
	if opts.Bytes == 0 && opts.Duration == 0 {
		t.Fatal("a flow needs an end")
	}
	conn, listener := dial(t, from, to, addr, opts.Congestion)
	defer listener.Close()
	end := time.Now().Add(flowTimeout)
	if opts.Duration > 0 {
		end = time.Now().Add(opts.Duration)
	}
	defer conn.Close()
	received := make(chan result, 1)
	go func() { received <- receive(listener, end.Add(flowGrace)) }()
	sent, err := send(conn, opts.Bytes, end)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		abort(conn)
		t.Fatalf("flow to %s: %v", addr, err)
	}
	_ = conn.CloseWrite()
	got := <-received
	if got.err != nil {
		abort(conn)
	}
	if opts.Duration == 0 && got.n < opts.Bytes {
		t.Fatalf("flow to %s: %d of %d bytes sent, %d arrived: %v", addr, sent, opts.Bytes, got.n, got.err)
	}
	return got.n
}

// abort has the next Close reset the connection, and no socket without an owner retry in its namespace and keep that alive.
func abort(conn *net.TCPConn) { _ = conn.SetLinger(0) }

type result struct {
	n   int64
	err error
}

// dial connects namespace from to a new listener in to. The sockets stay where they were made, whoever uses them.
func dial(t testing.TB, from, to *NS, addr, congestion string) (*net.TCPConn, *net.TCPListener) {
	t.Helper()
	control := func(_, _ string, c syscall.RawConn) error {
		if congestion == "" {
			return nil
		}
		var err error
		if e := c.Control(func(fd uintptr) {
			err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion)
		}); e != nil {
			return e
		}
		if err != nil {
			return fmt.Errorf("congestion control %s: %w", congestion, err)
		}
		return nil
	}
	var listener net.Listener
	to.do(t, "listen", func() (err error) {
		lc := net.ListenConfig{Control: control}
		lc.SetMultipathTCP(false) // it has counters of its own
		listener, err = lc.Listen(context.Background(), "tcp4", net.JoinHostPort(addr, "0"))
		return err
	})
	var conn net.Conn
	err := from.try(func() (err error) {
		d := net.Dialer{Control: control, Timeout: dialTimeout}
		d.SetMultipathTCP(false)
		conn, err = d.Dial("tcp4", listener.Addr().String())
		return err
	})
	if err != nil {
		listener.Close()
		t.Fatalf("dial from %s: %v", from.Path, err)
	}
	return conn.(*net.TCPConn), listener.(*net.TCPListener)
}

// send writes so many bytes, or without end if that is 0.
func send(conn *net.TCPConn, size int64, end time.Time) (sent int64, err error) {
	_ = conn.SetDeadline(end)
	buf := make([]byte, 64<<10)
	for size == 0 || sent < size {
		chunk := buf
		if size > 0 {
			chunk = buf[:min(int64(len(buf)), size-sent)]
		}
		n, err := conn.Write(chunk)
		sent += int64(n)
		if err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// receive takes one connection and reads it to its end.
func receive(listener *net.TCPListener, end time.Time) result {
	_ = listener.SetDeadline(end)
	conn, err := listener.AcceptTCP()
	if err != nil {
		return result{err: err}
	}
	defer conn.Close()
	_ = conn.SetDeadline(end)
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{conn}, make([]byte, 256<<10))
	if err != nil {
		abort(conn)
	}
	return result{n, err}
}

// UDPBurst sends one datagram to each of n ports of dst, all from one socket, and returns how many the kernel took.
func UDPBurst(t testing.TB, from *NS, dst string, firstPort, n int) (sent int) {
	t.Helper()
	ip := parseIP(t, dst)
	from.do(t, "send", func() error {
		conn, err := net.ListenUDP("udp4", nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		for port := firstPort; port < firstPort+n; port++ {
			if _, err := conn.WriteToUDPAddrPort([]byte("burst"), netip.AddrPortFrom(ip, uint16(port))); err == nil {
				sent++
			}
		}
		return nil
	})
	return sent
}

// ListenOverflow makes so many connection attempts to a listener that never accepts. It returns once the server has counted
// an overflow. The attempts end with it, so that nothing retries while the test reads counters.
func ListenOverflow(t testing.TB, server, client *NS, addr string, backlog, connects int) {
	t.Helper()
	ip := parseIP(t, addr)
	before := server.Nstat(t)["TcpExtListenOverflows"]
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	var at unix.Sockaddr
	server.do(t, "listen", func() error {
		fd, err := tcpSocket()
		if err != nil {
			return err
		}
		fds = append(fds, fd)
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: ip.As4()}); err != nil {
			return fmt.Errorf("bind: %w", err)
		}
		if err := unix.Listen(fd, backlog); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		at, err = unix.Getsockname(fd)
		return err
	})
	client.do(t, "connect", func() error {
		for range connects {
			fd, err := tcpSocket()
			if err != nil {
				return err
			}
			fds = append(fds, fd)
			if err := unix.Connect(fd, at); err != nil && !errors.Is(err, unix.EINPROGRESS) {
				return fmt.Errorf("connect: %w", err)
			}
		}
		return nil
	})
	for end := time.Now().Add(dialTimeout); server.Nstat(t)["TcpExtListenOverflows"] == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connects to a backlog of %d overflowed nothing", connects, backlog)
		}
	}
}

func tcpSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	return fd, nil
}

func parseIP(t testing.TB, s string) netip.Addr {
	t.Helper()
	ip, err := netip.ParseAddr(s)
	if err != nil || !ip.Is4() {
		t.Fatalf("%q is not an IPv4 address", s)
	}
	return ip
}
