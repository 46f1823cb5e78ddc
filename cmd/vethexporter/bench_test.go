package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/vethexporter/vethexporter/collector"
	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

// benchSizes are the numbers of namespaces. Each has lo and one end of a veth pair whose other end is on a bridge of a
// namespace that stands for the host, and counters as traffic makes them.
var benchSizes = []int{1, 100, 1000}

// benchDir makes n namespaces, mounted in the folder that it returns.
func benchDir(b *testing.B, n int) string {
	dir := b.TempDir()
	hub := nettest.New(b)
	for i := range n {
		ns := nettest.Named(b, dir, fmt.Sprintf("ns%04d", i))
		nettest.Veth(b, hub, fmt.Sprintf("v%d", i), ns, "eth0")
		nettest.TCPFlow(b, ns, ns, "127.0.0.1", nettest.FlowOptions{Bytes: 256 << 10})
	}
	return dir
}

// cpu returns the processor time of this process, user and system, in seconds.
func cpu() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// perNetns reports what the loop cost for each namespace.
func perNetns(b *testing.B, n int, loop func()) {
	runtime.GC()
	start := cpu()
	b.ResetTimer()
	for b.Loop() {
		loop()
	}
	b.ReportMetric((cpu()-start)*1e6/float64(b.N)/float64(n), "cpu-us/each")
}

// BenchmarkScrape is a whole scrape as Prometheus makes it, with the collectors that BenchmarkFloor has the numbers of:
// discovery, visits, text, gzip.
func BenchmarkScrape(b *testing.B) {
	chosen, err := collector.Select(collector.All(), []string{"tcp", "device", "conntrack", "softnet", "softirq"})
	if err != nil {
		b.Fatal(err)
	}
	benchmarkScrape(b, chosen)
}

// BenchmarkScrapeAll is a scrape with all collectors.
func BenchmarkScrapeAll(b *testing.B) { benchmarkScrape(b, collector.All()) }

// BenchmarkDevices is a scrape with all collectors of one namespace with that many devices besides.
func BenchmarkDevices(b *testing.B) {
	nettest.Root(b)
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprintf("devices=%d", n), func(b *testing.B) {
			dir := benchDir(b, 1)
			ns := &nettest.NS{Path: dir + "/ns0000"}
			ns.Devices(b, n)
			benchmarkDir(b, collector.All(), dir, 1, n)
		})
	}
}

func benchmarkScrape(b *testing.B, collectors []*collector.Collector) {
	nettest.Root(b)
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("netns=%d", n), func(b *testing.B) {
			benchmarkDir(b, collectors, benchDir(b, n), n, n)
		})
	}
}

// benchmarkDir scrapes the namespaces of dir, and divides the cost by parts.
func benchmarkDir(b *testing.B, collectors []*collector.Collector, dir string, namespaces, parts int) {
	s, err := collector.NewScraper(collector.Options{
		Collectors: collectors, Concurrent: 1, Logger: slog.New(slog.DiscardHandler),
		Discovery: &netns.Discovery{Proc: "/proc", Named: []string{dir}},
		Visitor:   netns.VisitorOptions{Proc: "/proc", Sys: "/sys"},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	h := &metricsHandler{scraper: s, self: prometheus.NewRegistry(), timeout: 1e11, logger: slog.New(slog.DiscardHandler)}
	var body bytes.Buffer
	scrape := func(coding string) {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Accept-Encoding", coding)
		w := httptest.NewRecorder()
		body.Reset()
		w.Body = &body
		h.ServeHTTP(w, r)
	}
	scrape("identity")
	if got := strings.Count(body.String(), "veth_tcp_ofo_queue_total{netns=\"named:ns"); got != namespaces {
		b.Fatalf("%d namespaces in the answer, want %d", got, namespaces)
	}
	series := strings.Count(body.String(), "{netns=\"named:ns0000\"")
	size := body.Len()
	perNetns(b, parts, func() { scrape("gzip") })
	b.ReportMetric(float64(series), "series/netns")
	b.ReportMetric(float64(size)/float64(namespaces), "bytes/netns")
}

// BenchmarkFloor makes the kernel calls that no scrape of the same numbers can avoid, and does nothing with the answers.
func BenchmarkFloor(b *testing.B) {
	nettest.Root(b)
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("netns=%d", n), func(b *testing.B) {
			dir := benchDir(b, n)
			done := make(chan struct{})
			netns.OnThread(func() {
				defer close(done)
				f := newFloor(b, dir)
				perNetns(b, n, f.read)
			})
			<-done
		})
	}
}

// floor reads each namespace with bare system calls: enter, netstat, snmp, a dump of links, conntrack by netlink, leave.
type floor struct {
	b     *testing.B
	home  int
	paths []string
	buf   []byte
}

func newFloor(b *testing.B, dir string) *floor {
	f := &floor{b: b, buf: make([]byte, 64<<10)}
	entries, err := os.ReadDir(dir)
	f.must(err)
	for _, e := range entries {
		f.paths = append(f.paths, dir+"/"+e.Name())
	}
	f.home, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	f.must(err)
	return f
}

func (f *floor) must(err error) {
	if err != nil {
		f.b.Error(err)
		runtime.Goexit()
	}
}

func (f *floor) read() {
	for _, path := range f.paths {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		f.must(err)
		f.must(unix.Setns(fd, unix.CLONE_NEWNET))
		unix.Close(fd)
		f.file("/proc/thread-self/net/netstat")
		f.file("/proc/thread-self/net/snmp")
		f.netlink(unix.NETLINK_ROUTE, unix.RTM_GETLINK, unix.SizeofIfInfomsg, true)
		f.netlink(unix.NETLINK_NETFILTER, 1<<8|4, 4, true)
		f.netlink(unix.NETLINK_NETFILTER, 1<<8|5, 4, false)
		f.must(unix.Setns(f.home, unix.CLONE_NEWNET))
	}
}

func (f *floor) file(path string) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	f.must(err)
	defer unix.Close(fd)
	for {
		n, err := unix.Read(fd, f.buf)
		f.must(err)
		if n == 0 {
			return
		}
	}
}

func (f *floor) netlink(family int, typ uint16, size int, dump bool) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	f.must(err)
	defer unix.Close(fd)
	request := make([]byte, unix.SizeofNlMsghdr+size)
	binary.NativeEndian.PutUint32(request, uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], typ)
	flags := uint16(unix.NLM_F_REQUEST)
	if dump {
		flags |= unix.NLM_F_DUMP
	}
	binary.NativeEndian.PutUint16(request[6:], flags)
	f.must(unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	for {
		n, _, err := unix.Recvfrom(fd, f.buf, 0)
		f.must(err)
		if n < unix.SizeofNlMsghdr {
			f.must(io.ErrUnexpectedEOF)
		}
		if typ := binary.NativeEndian.Uint16(f.buf[4:]); !dump || typ == unix.NLMSG_DONE || typ == unix.NLMSG_ERROR {
			return
		}
	}
}
