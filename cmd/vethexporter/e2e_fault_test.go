package main_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vethexporter/vethexporter/internal/nettest"
)

// fifo makes a file whose opening hangs until somebody writes to it, as a read hangs in a kernel with a stuck lock.
func fifo(t *testing.T, path string) {
	t.Helper()
	if err := unix.Mkfifo(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil { // whatever the umask
		t.Fatal(err)
	}
}

// release lets the one who hangs in the FIFO read what the other file holds.
func release(t *testing.T, fifo, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(fifo, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatalf("nobody hangs in it: %v", err)
	}
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		t.Fatal(err)
	}
}

// hang is a collector that hangs in one place.
type hang struct {
	e         *exporter
	collector string
	repair    func() // ends the cause and lets go who hangs
}

// check scrapes until the place is known, again and again, and after the repair.
func (h hang) check(t *testing.T, whole func(*testing.T, *scrape)) {
	t.Helper()
	s := h.e.scrape(t, timeoutHeader, "1")
	if s.took >= time.Second {
		t.Errorf("the scrape took %v of one second", s.took)
	}
	if !h.e.waits(t) {
		t.Fatal("no thread hangs")
	}
	stuck := func(s *scrape) {
		t.Helper()
		s.check(t, 0, "veth_scrape_collector_success", "collector", h.collector)
		s.check(t, 1, "veth_scrape_collector_runs", "collector", h.collector, "outcome", "skipped")
		s.check(t, 1, "veth_scrape_lost_threads")
		s.check(t, 1, "veth_scrape_errors_total", "collector", h.collector, "reason", "hung")
		for _, x := range s.samples["veth_scrape_collector_success"] {
			if name := x.labels["collector"]; name != h.collector && x.value != 1 {
				t.Errorf("collector %s suffers too", name)
			}
		}
		whole(t, s)
	}
	stuck(s)
	threads := h.e.status(t, "Threads")
	for range 10 {
		s := h.e.scrape(t, timeoutHeader, "10")
		if s.took >= time.Second {
			t.Errorf("a later scrape took %v", s.took)
		}
		stuck(s)
	}
	// A thread for each scrape would be ten; the Go runtime starts one of its own now and then.
	if got := h.e.status(t, "Threads"); got > threads+8 {
		t.Errorf("%d threads became %d", threads, got)
	}
	h.repair()
	eventually(t, 5*time.Second, "the collector works again", func() bool {
		s = h.e.scrape(t)
		return s.value(t, "veth_scrape_lost_threads") == 0 &&
			s.value(t, "veth_scrape_collector_runs", "collector", h.collector, "outcome", "skipped") == 0
	})
	s.check(t, 1, "veth_scrape_errors_total", "collector", h.collector, "reason", "hung")
	for _, x := range s.find("veth_scrape_errors_total") {
		if x.labels["reason"] != "hung" && x.value != 0 {
			t.Errorf("%v errors: %v", x.value, x.labels)
		}
	}
}

// TestHungRead has one file of the node hang. All that does not need it comes as if nothing were amiss.
func TestHungRead(t *testing.T) {
	n := nettest.New(t)
	pipe := filepath.Join(t.TempDir(), "softirqs")
	fifo(t, pipe)
	args := append(mounts(n), only("host", inodeName(n)))
	healthy := start(t, args...).scrape(t)
	// Only the exporter sees the mount.
	exporter := command(t, args...)
	e := launch(t, exec.Command(nettest.Tool(t, "unshare"), append([]string{"--mount",
		"sh", "-c", `mount --bind "$1" /proc/softirqs && shift && exec "$@"`, "sh", pipe}, exporter.Args...)...))

	h := hang{e: e, collector: "softirq", repair: func() {
		nettest.Host().Exec(t, "nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", e.Pid()), "umount", "--lazy", "/proc/softirqs")
		release(t, pipe, "/proc/softirqs")
	}}
	h.check(t, func(t *testing.T, s *scrape) {
		t.Helper()
		for name, samples := range healthy.samples {
			// Orphans are counted only where nothing is left out, be it of another test.
			if !strings.HasPrefix(name, "veth_") || name == "veth_softirqs_total" || name == "veth_pair_orphan_devices" {
				continue
			}
			if got := len(s.samples[name]); got != len(samples) {
				t.Errorf("%d series of %s, want %d", got, name, len(samples))
			}
		}
		if got := len(s.samples["veth_softirqs_total"]); got > 0 {
			t.Errorf("%d series of what hangs", got)
		}
	})
	if got := e.scrape(t).samples["veth_softirqs_total"]; len(got) != len(healthy.samples["veth_softirqs_total"]) {
		t.Errorf("%d series after the repair", len(got))
	}
}

// TestHungNamespace has a file of one namespace hang. It costs that collector in that namespace only. The exporter runs without
// any capability, as then it reads what /proc/PID/net shows, where a test can put a file of its own.
func TestHungNamespace(t *testing.T) {
	stuck, well := nettest.WithProcess(t), nettest.WithProcess(t)
	nettest.Connect(t, stuck, "eth0", well, "eth0")
	nettest.TCPFlow(t, stuck, well, well.IP, nettest.FlowOptions{Bytes: 1 << 20})
	proc, pid := openDir(t), fmt.Sprint(stuck.Pid)
	if err := os.MkdirAll(filepath.Join(proc, pid, "net"), 0o755); err != nil {
		t.Fatal(err)
	}
	linkProc(t, proc, "1", "self", "thread-self", "softirqs", "sys", "stat", fmt.Sprint(well.Pid),
		pid+"/ns", pid+"/net/snmp", pid+"/net/dev", pid+"/net/stat", pid+"/net/softnet_stat")
	pipe := filepath.Join(proc, pid, "net", "netstat")
	fifo(t, pipe)

	cmd := command(t, "--path.procfs="+proc, "--collector.disable-defaults", "--collector.tcp", "--collector.device", "--collector.softnet")
	cmd.SysProcAttr = unprivileged()
	e := launch(t, cmd)
	linkProc(t, proc, fmt.Sprint(e.Pid())) // or else it would not know its own namespace for the host's
	var st unix.Stat_t
	if err := unix.Stat(pipe, &st); err != nil {
		t.Fatal(err)
	}
	stuckName, wellName := fmt.Sprintf("procfs:%d", st.Ino), procfsName(t, well.Pid)

	names := nstatNames(t)
	h := hang{e: e, collector: "tcp", repair: func() {
		if err := os.Rename(pipe, pipe+".old"); err != nil {
			t.Fatal(err)
		}
		linkProc(t, proc, pid+"/net/netstat")
		release(t, pipe+".old", pipe)
	}}
	h.check(t, func(t *testing.T, s *scrape) {
		t.Helper()
		now := nstat(t, well)
		compareTCP(t, s, names, wellName, now, now)
		if got := len(s.find("veth_tcp_in_segs_total", "netns", "host")); got != 1 {
			t.Errorf("%d series of the host", got)
		}
		if got := s.find("veth_tcp_in_segs_total", "netns", stuckName); len(got) > 0 {
			t.Errorf("half of what hangs: %v", got)
		}
		for _, name := range []string{stuckName, wellName} {
			if got := s.value(t, "veth_device_receive_packets_total", "netns", name, "device", "eth0"); got == 0 {
				t.Errorf("no packets in %s", name)
			}
		}
	})
	now := nstat(t, stuck)
	compareTCP(t, e.scrape(t), names, procfsName(t, stuck.Pid), now, now)
}

// TestBadInput gives command lines that must be refused at once, with one line that says what to change.
func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	busy, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	missing := filepath.Join(dir, "missing")
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"unknown flag":       {[]string{"--bogus"}, "--bogus"},
		"unknown command":    {[]string{"bogus"}, "bogus"},
		"bad include":        {[]string{"--netns.include=("}, "--netns.include"},
		"bad exclude":        {[]string{"--netns.exclude=a)|(b"}, "--netns.exclude"},
		"negative limit":     {[]string{"--limit.netns=-1"}, "--limit.netns"},
		"limit not a number": {[]string{"--limit.devices=many"}, "--limit.devices"},
		"no scrapes":         {[]string{"--web.max-requests=0"}, "--web.max-requests"},
		"bad duration":       {[]string{"--scrape.timeout=10"}, "--scrape.timeout"},
		"missing procfs":     {[]string{"--path.procfs=" + missing}, "--path.procfs"},
		"procfs is a file":   {[]string{"--path.procfs=" + file("plain", "")}, "--path.procfs"},
		"procfs is not one":  {[]string{"--path.procfs=" + dir}, "--path.procfs"},
		"missing sysfs":      {[]string{"--path.sysfs=" + missing}, "--path.sysfs"},
		"no collector":       {[]string{"--collector.disable-defaults"}, "--collector.disable-defaults"},
		"bad format":         {[]string{"metrics", "--format=xml"}, "--format"},
		"bad log level":      {[]string{"--log.level=loud"}, "log level"},
		"missing web config": {[]string{"--web.config.file=" + missing}, "--web.config.file"},
		"unknown web config": {[]string{"--web.config.file=" + file("unknown", "bogus: true\n")}, "--web.config.file"},
		"invalid web config": {[]string{"--web.config.file=" + file("invalid", "just text")}, "--web.config.file"},
		"missing key": {[]string{"--web.config.file=" + file("key", "tls_server_config: {cert_file: "+missing+", key_file: "+missing+"}")},
			"--web.config.file"},
		"busy port":               {[]string{"--web.listen-address=" + busy.Addr().String()}, "--web.listen-address"},
		"bad address":             {[]string{"--web.listen-address=nowhere"}, "--web.listen-address"},
		"path without slash":      {[]string{"--web.telemetry-path=metrics"}, "--web.telemetry-path"},
		"empty path":              {[]string{"--web.telemetry-path="}, "--web.telemetry-path"},
		"path of another purpose": {[]string{"--web.telemetry-path=/-/ready"}, "--web.telemetry-path"},
		"path with a pattern":     {[]string{"--web.telemetry-path=/{"}, "--web.telemetry-path"},
	} {
		t.Run(name, func(t *testing.T) {
			args := tt.args
			if !strings.Contains(tt.want, "listen-address") && args[0] != "metrics" {
				args = append([]string{"--web.listen-address=127.0.0.1:0"}, args...)
			}
			code, stdout, stderr := runToEnd(t, args...)
			if code != 1 {
				t.Errorf("exit code %d", code)
			}
			if stdout != "" {
				t.Errorf("stdout: %s", stdout)
			}
			if strings.Contains(stderr, "Listening") {
				t.Error("it listened")
			}
			// What was found on the way is logged before a port turns out to be busy.
			var lines []string
			for line := range strings.Lines(stderr) {
				if !strings.Contains(line, "level=INFO") {
					lines = append(lines, line)
				}
			}
			if len(lines) != 1 || !strings.HasPrefix(lines[0], "vethexporter: error: ") || !strings.Contains(lines[0], tt.want) {
				t.Errorf("want one line of error that names %s:\n%s", tt.want, stderr)
			}
		})
	}
}

// TestAnsweredAtOnce gives command lines that only ask something.
func TestAnsweredAtOnce(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"--help", "serve"}, {"serve --help", "--netns.include"}, {"-h", "metrics"}, {"--version", "vethexporter, version"},
		{"metrics", "| `veth_tcp_ofo_queue_total` |"}, {"metrics --format=json", `"veth_tcp_ofo_queue_total"`},
	} {
		code, stdout, stderr := runToEnd(t, strings.Fields(tt.args)...)
		if code != 0 || stderr != "" || !strings.Contains(stdout, tt.want) {
			t.Errorf("%s: code %d, stderr %q, stdout without %q:\n%.300s", tt.args, code, stderr, tt.want, stdout)
		}
	}
}

// runToEnd runs the program, which must end by itself.
func runToEnd(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary(t), args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // the code tells
	if ctx.Err() != nil {
		t.Errorf("did not end by itself")
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}
