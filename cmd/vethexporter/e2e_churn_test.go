package main_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/vethexporter/vethexporter/internal/nettest"
)

// scrapeLoop scrapes without a pause until stop is called, which returns what came back.
func scrapeLoop(e *exporter, threads int, check func(*scrape) error) (stop func() (scrapes int, err error)) {
	var (
		mu      sync.Mutex
		scrapes int
		errs    []error
		running sync.WaitGroup
		end     = make(chan struct{})
	)
	for range threads {
		running.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				s, err := e.try()
				if err == nil {
					err = check(s)
				}
				mu.Lock()
				scrapes++
				if err != nil && len(errs) < 10 {
					errs = append(errs, err)
				}
				mu.Unlock()
			}
		})
	}
	return func() (int, error) {
		close(end)
		running.Wait()
		return scrapes, errors.Join(errs...)
	}
}

// TestContainerRemoved removes a container while scrapes read it. The kernel must get rid of its namespace at once: an
// exporter that held on to it would keep its addresses and its host-side device alive.
func TestContainerRemoved(t *testing.T) {
	docker := nettest.StartDocker(t)
	c, bystander, dev := docker.Run(t, "removed"), nettest.WithProcess(t), nettest.Unique()
	nettest.Veth(t, nettest.Host(), dev, c.NS, "eth0")
	e := start(t, "--docker.socket="+docker.Socket, "--path.docker-netns="+docker.Netns)
	name := "container:" + c.Name

	first := e.scrape(t)
	first.check(t, 1, "veth_device_up", "netns", name, "device", "eth0")
	first.check(t, 1, "veth_device_up", "netns", "host", "device", dev)
	whole := func(s *scrape) (series int) {
		for name := range s.of(inodeName(bystander)) {
			// What is about several namespaces, as a pair of devices, may be missing while one of them ends.
			if !strings.HasPrefix(name, "veth_pair_") {
				series++
			}
		}
		return series
	}
	want := whole(first)
	stop := scrapeLoop(e, 2, func(s *scrape) error {
		if faults := s.faults(); faults != nil {
			return fmt.Errorf("%q", faults)
		}
		if got := whole(s); got != want {
			return fmt.Errorf("%d series of a namespace that nothing happened to, want %d", got, want)
		}
		return nil
	})
	c.Remove(t)
	nettest.Host().WaitNoLink(t, dev, 5*time.Second)
	last := e.scrape(t)
	scrapes, err := stop()
	if err != nil {
		t.Error(err)
	}
	if scrapes < 3 {
		t.Errorf("only %d scrapes while the container was removed", scrapes)
	}
	if left := last.of(name); len(left) > 0 {
		t.Errorf("%d series of the removed container", len(left))
	}
	if left := last.find("veth_device_up", "netns", "host", "device", dev); len(left) > 0 {
		t.Error("the removed container's device is still there")
	}
}

// mtu gives both ends of a pair an MTU from the start on.
func mtu(size int) nettest.VethOption {
	return func(v *netlink.Veth) { v.MTU, v.PeerMTU = size, uint32(size) }
}

// TestChurn makes and deletes namespaces while scrapes run. Each named one has a device with an MTU of its own, so that data
// that was read in another namespace would show.
func TestChurn(t *testing.T) {
	dir, hub := t.TempDir(), nettest.New(t)
	e := start(t, append(mounts(hub), "--path.netns="+dir)...)
	serial, seen := 0, sync.Map{}
	check := func(s *scrape) error {
		for _, x := range s.find("veth_device_mtu_bytes", "device", "eth0") {
			if number, ok := strings.CutPrefix(x.labels["netns"], "named:churn"); ok {
				seen.Store(number, true)
				if fmt.Sprint(x.value) != number {
					return fmt.Errorf("MTU %v in %s", x.value, x.labels["netns"])
				}
			}
		}
		for _, x := range s.samples["veth_scrape_errors_total"] {
			if x.value != 0 {
				return fmt.Errorf("%v errors: %v", x.value, x.labels)
			}
		}
		return nil
	}
	churn := func(rounds int) {
		for range rounds {
			serial++
			size := 1000 + serial
			n := nettest.Named(t, dir, fmt.Sprintf("churn%d", size))
			nettest.Veth(t, hub, fmt.Sprintf("v%d", size), n, "eth0", mtu(size))
			p := nettest.WithProcess(t)
			n.Delete(t)
			p.Delete(t)
		}
	}
	type usage struct{ fds, threads, goroutines, netns int }
	use := func() usage {
		// What each of the exporter's threads keeps of namespaces that are gone, it gives back when it works again.
		for range 5 {
			var pair sync.WaitGroup
			for range 2 {
				pair.Go(func() { _, _ = e.try() })
			}
			pair.Wait()
		}
		s := e.scrape(t)
		found := s.value(t, "veth_scrape_netns_found", "source", "process") + s.value(t, "veth_scrape_netns_found", "source", "mount")
		return usage{e.fds(t), e.status(t, "Threads"), int(s.value(t, "go_goroutines")), int(found)}
	}

	stop := scrapeLoop(e, 2, check)
	churn(10)
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	hub.WaitNoLink(t, fmt.Sprintf("v%d", 1000+serial), 5*time.Second)
	before := use()
	stop = scrapeLoop(e, 2, check)
	churn(60)
	scrapes, err := stop()
	if err != nil {
		t.Error(err)
	}
	for range 100 - scrapes {
		if err := check(e.scrape(t)); err != nil {
			t.Error(err)
		}
	}
	hub.WaitNoLink(t, fmt.Sprintf("v%d", 1000+serial), 5*time.Second)
	const slack = 3 // the Go runtime starts a thread now and then, and a connection may be closing
	const kept = 12 // descriptors for each namespace that lives, such as those of tests that run at the same time
	var after usage
	for end := time.Now().Add(5 * time.Second); ; {
		after = use()
		if after.fds <= before.fds+slack+kept*max(after.netns-before.netns, 0) && after.threads <= before.threads+slack && after.goroutines <= before.goroutines+slack {
			break
		}
		if time.Now().After(end) {
			t.Errorf("the exporter holds %+v, before it was %+v", after, before)
			break
		}
	}
	known := 0
	seen.Range(func(any, any) bool { known++; return true })
	if known < 10 {
		t.Errorf("scrapes met only %d of the namespaces", known)
	}
	t.Logf("%d scrapes, %d of %d namespaces seen, %+v before, %+v after", scrapes, known, serial, before, after)
}

// TestInodeReuse has a namespace follow another that had its inode, without a scrape in between: the name is the same, but the
// time it was first seen tells them apart.
func TestInodeReuse(t *testing.T) {
	dir := t.TempDir()
	e := start(t, "--path.docker-netns="+dir)
	firstSeen := func(n *nettest.NS) float64 {
		return e.scrape(t).value(t, "veth_netns_first_seen_timestamp_seconds", "netns", inodeName(n))
	}
	old := nettest.Named(t, dir, "old")
	before := firstSeen(old)
	if again := firstSeen(old); again != before {
		t.Fatalf("first seen at %v, then at %v", before, again)
	}
	old.Delete(t)
	// The kernel hands out the lowest free inode. It frees them in its own time, and those below may be free too: what is made
	// in vain stays, so that at last the right one is the lowest.
	for try := range 200 {
		n := nettest.Named(t, dir, fmt.Sprint("new", try))
		if n.Ino == old.Ino {
			if after := firstSeen(n); after <= before {
				t.Errorf("first seen at %v, and the namespace before it at %v", after, before)
			}
			t.Logf("the inode came back at try %d", try)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("the inode did not come back")
}

// TestHostileNames has namespaces that no label or limit is made for: too many devices, names of devices that are no UTF-8,
// and a name of a namespace that the exposition has to escape.
func TestHostileNames(t *testing.T) {
	dir := t.TempDir()
	many := nettest.Named(t, dir, "many")
	odd := nettest.Named(t, dir, "a\"b\\c\nd\xffe")
	plain := nettest.Named(t, dir, "plain")
	many.Devices(t, 700)
	odd.Dummy(t, "e\xffth")
	odd.Dummy(t, "e\xfeth") // the same once the bytes are replaced
	odd.Dummy(t, `q"\uote`)
	nettest.TCPFlow(t, odd, odd, "127.0.0.1", nettest.FlowOptions{Bytes: 1 << 20})
	e := start(t, "--path.netns="+dir, only("host", "named:many", "named:plain", "named:a\"b\\c\nd\uFFFDe"))

	s := e.scrape(t) // which parse has found to be UTF-8 without duplicates
	s.check(t, 1, "veth_scrape_netns", "outcome", "capped")
	s.check(t, 3, "veth_scrape_netns", "outcome", "ok")
	s.check(t, 1, "veth_scrape_collector_runs", "collector", "device", "outcome", "capped")
	if faults := s.faults(); faults != nil {
		t.Error(faults)
	}
	if got := len(s.find("veth_device_up", "netns", "named:many")); got != 512 {
		t.Errorf("%d devices, want 512", got)
	}
	s.check(t, 1, "veth_device_up", "netns", "named:many", "device", "lo")
	s.value(t, "veth_tcp_in_segs_total", "netns", "named:many")

	names := nstatNames(t)
	now := nstat(t, odd)
	compareTCP(t, s, names, "named:a\"b\\c\nd\uFFFDe", now, now)
	devices := map[string]bool{}
	for _, x := range s.find("veth_device_up", "netns", "named:a\"b\\c\nd\uFFFDe") {
		devices[x.labels["device"]] = true
	}
	if len(devices) != 4 || !devices["lo"] || !devices[`q"\uote`] {
		t.Errorf("devices %q", slices.Collect(maps.Keys(devices)))
	}
	for _, l := range plain.IPLink(t) {
		compareLink(t, s, "named:plain", l)
	}
}
