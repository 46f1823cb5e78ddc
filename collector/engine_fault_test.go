package collector

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

// TestPanicOutsideCollectors: a panic in the engine's own part of the work costs that scrape what is left of it, and a thread,
// which may be anywhere. The program lives, and counts it.
func TestPanicOutsideCollectors(t *testing.T) {
	e := newEngine(t, func(o *Options) { o.Discovery = nil }, // a nil pointer for the discovery to trip over
		nodeProbe("node", func(context.Context, *netns.View) (float64, error) { return 7, nil }), steady("one"))
	threads := nettest.Threads()
	for round := range 10 {
		got := e.scrape(engineTimeout)
		got.expect(t, map[string]float64{"veth_node": 7, errorsOf(discovering, reasonBug): float64(round + 1), "veth_scrape_lost_threads": 0})
		got.absent(t, "veth_one")
	}
	eventually(t, "no more threads than before", func() bool { return nettest.Threads() <= threads+5 })
	if log := e.log.String(); !strings.Contains(log, "panic: runtime error") || !strings.Contains(log, "worker.go") {
		t.Errorf("log without the stack: %s", log)
	}
}

// TestWithoutProcfs: what cannot even begin says so, and leaves the scraper's own numbers.
func TestWithoutProcfs(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	e := newEngine(t, func(o *Options) { o.Visitor.Proc = missing }, steady("one"))
	e.scrape(engineTimeout).expect(t, map[string]float64{errorsOf(discovering, reasonRead): 1, `veth_scrape_collector_series{collector="one"}`: 0})

	e = newEngine(t, func(o *Options) { o.Discovery.Proc = missing }, steady("one"))
	got := e.scrape(engineTimeout)
	got.expect(t, map[string]float64{errorsOf(discovering, reasonRead): 1, faredAs(outcomeOK): 0})
	got.absent(t, "veth_one")
}

const foreignEnv = "VETHEXPORTER_TEST_FOREIGN_PID"

// TestWithoutPrivileges scrapes as a user who may nothing: nothing fails, the host's namespace is whole as far as it is
// readable, and of other namespaces with a process what /proc/PID/net shows is there. As root it runs itself as such a user.
func TestWithoutPrivileges(t *testing.T) {
	if os.Getuid() == 0 {
		asNobody(t, nettest.WithProcess(t))
		return
	}
	e := newEngine(t, func(o *Options) { o.Include = nil }, All()...)
	got := e.scrape(engineTimeout)
	for series, value := range got {
		if strings.HasPrefix(series, "veth_scrape_errors_total") && value > 0 {
			t.Errorf("%s = %v\n%s", series, value, e.log)
		}
	}
	for _, name := range []string{"tcp", "device", "softnet", "softirq"} {
		got.expect(t, map[string]float64{runsOf(name, outcomeFailed): 0, runsOf(name, outcomeSkipped): 0})
	}
	got.expect(t, map[string]float64{`veth_device_up{netns="host",device="lo"}`: 1, successOf("softnet"): 1, successOf("softirq"): 1})
	got.value(t, `veth_tcp_in_segs_total{netns="host"}`)
	if os.Getenv(foreignEnv) == "" {
		return
	}
	found, err := e.opts.Discovery.Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if found.Unidentified == 0 || got["veth_scrape_netns_unidentified"] == 0 || got[faredAs(outcomeDenied)] == 0 {
		t.Errorf("%d namespaces not identified, the scrape says %v; %v denied", found.Unidentified, got["veth_scrape_netns_unidentified"], got[faredAs(outcomeDenied)])
	}
	foreign := ""
	for series := range got {
		if ns, ok := strings.CutPrefix(series, `veth_netns_processes{netns="procfs:`); ok {
			foreign = "procfs:" + strings.TrimSuffix(ns, `"}`)
		}
	}
	for _, series := range []string{"veth_tcp_in_segs_total{netns=%q}", `veth_device_receive_bytes_total{netns=%q,device="lo"}`} {
		got.value(t, series, foreign)
	}
	got.absent(t, "veth_device_up{netns=%q", foreign) // not known from outside: no value rather than a wrong one
	if log := e.log.String(); strings.Count(log, "CAP_SYS_PTRACE") != 1 || strings.Count(log, "CAP_SYS_ADMIN") != 1 {
		t.Errorf("log: %s", log)
	}
}

// asNobody runs the calling test again as a user without privileges, beside the process of a foreign namespace.
func asNobody(t *testing.T, foreign *nettest.NS) {
	t.Helper()
	const nobody = 65534
	dir, err := os.MkdirTemp("", "vt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	binary := filepath.Join(dir, "test")
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	file, err := os.OpenFile(binary, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(file, self); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Dir, cmd.WaitDelay = "/", time.Second
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", foreignEnv, foreign.Pid), "GORACE=atexit_sleep_ms=0", "GOCOVERDIR=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}
