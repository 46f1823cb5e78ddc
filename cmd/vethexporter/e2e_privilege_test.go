package main_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

// procfsName is how the exporter names a namespace that it cannot identify.
func procfsName(t *testing.T, pid int) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/net/netstat", pid), &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("procfs:%d", st.Ino)
}

// unprivileged makes a child run as nobody, with the capabilities.
func unprivileged(capabilities ...uintptr) *syscall.SysProcAttr {
	const nobody = 65534
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, AmbientCaps: capabilities}
}

// TestPrivilegeTiers runs the program as nobody with more and more capabilities. Each tier serves all that its capabilities
// allow, and says what it lacks.
func TestPrivilegeTiers(t *testing.T) {
	process, dir := nettest.WithProcess(t), openDir(t)
	cold := nettest.Named(t, dir, "cold") // without a process
	nettest.Connect(t, process, "eth0", cold, "eth0")
	nettest.TCPFlow(t, process, cold, cold.IP, nettest.FlowOptions{Bytes: 1 << 20})
	procfs := procfsName(t, process.Pid)
	names := nstatNames(t)

	const ptrace, admin = "CAP_SYS_PTRACE is missing", "CAP_SYS_ADMIN is missing"
	for _, tt := range []struct {
		tier         string
		capabilities []uintptr
		name         string   // of the namespace with a process
		lacks        []string // what the log says
	}{
		{"none", nil, procfs, []string{ptrace, admin}},
		{"ptrace", []uintptr{unix.CAP_SYS_PTRACE}, inodeName(process), []string{admin}},
		{"admin", []uintptr{unix.CAP_SYS_PTRACE, unix.CAP_SYS_ADMIN}, inodeName(process), nil},
		{"all", []uintptr{unix.CAP_SYS_PTRACE, unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN}, inodeName(process), nil},
	} {
		t.Run(tt.tier, func(t *testing.T) {
			cmd := command(t, "--path.netns="+dir, only("host", tt.name, "named:cold"))
			cmd.SysProcAttr = unprivileged(tt.capabilities...)
			e := launch(t, cmd)
			e.scrape(t)
			hostBefore, now := nstat(t, nettest.Host()), nstat(t, process)
			s := e.scrape(t)
			compareTCP(t, s, names, "host", hostBefore, nstat(t, nettest.Host()))
			compareTCP(t, s, names, tt.name, now, now)
			s.check(t, 1, "veth_scrape_in_host_netns")

			entered := len(tt.lacks) == 0
			for _, l := range process.IPLink(t) {
				if entered {
					compareLink(t, s, tt.name, l)
				}
				for direction, counters := range map[string]map[string]uint64{"receive": l.Stats64.RX, "transmit": l.Stats64.TX} {
					for _, counter := range []string{"bytes", "packets", "errors", "dropped"} {
						s.check(t, float64(counters[counter]), "veth_device_"+direction+"_"+counter+"_total", "netns", tt.name, "device", l.Ifname)
					}
				}
			}
			s.check(t, float64(process.ConntrackCount(t)), "veth_conntrack_entries", "netns", tt.name)
			inode := fmt.Sprint(process.Ino)
			if tt.name == procfs {
				inode = ""
				if s.value(t, "veth_scrape_netns_unidentified") == 0 {
					t.Error("no namespace is counted as unidentified")
				}
			}
			s.check(t, 1, "veth_netns_info", "netns", tt.name, "inode", inode)
			if entered {
				s.check(t, 3, "veth_scrape_netns", "outcome", "ok")
				nowCold := nstat(t, cold)
				compareTCP(t, s, names, "named:cold", nowCold, nowCold)
				if faults := s.faults(); faults != nil {
					t.Error(faults)
				}
			} else {
				s.check(t, 2, "veth_scrape_netns", "outcome", "denied")
				s.check(t, 1, "veth_scrape_netns", "outcome", "ok")
				s.check(t, 0, "veth_scrape_collector_success", "collector", "tcp") // for the one without a process
				s.check(t, 1, "veth_scrape_collector_runs", "collector", "tcp", "outcome", "denied")
				s.check(t, 1, "veth_netns_info", "netns", "named:cold", "source", "mount")
				if got := s.find("veth_tcp_in_segs_total", "netns", "named:cold"); len(got) > 0 {
					t.Errorf("counters of a namespace that cannot be entered: %v", got)
				}
			}
			for _, text := range []string{ptrace, admin} {
				want := strings.Count(strings.Join(tt.lacks, "\n"), text)
				if lines := e.logged(text); len(lines) != want || want > 0 && !strings.Contains(lines[0], "level=WARN") {
					t.Errorf("the log says %q %d times, want %d warnings: %q", text, len(lines), want, lines)
				}
			}
			for _, x := range s.samples["veth_scrape_errors_total"] {
				if x.value != 0 {
					t.Errorf("%v errors: %v", x.value, x.labels)
				}
			}
		})
	}
}

// TestElsewhere runs the program in another namespace, as a container without the host's network does: what it calls host
// must still be the host's.
func TestElsewhere(t *testing.T) {
	home := nettest.New(t)
	exporter := command(t, append(mounts(home), only("host", inodeName(home)))...)
	e := launch(t, exec.Command(nettest.Tool(t, "nsenter"), append([]string{"--net=" + home.Path}, exporter.Args...)...))
	if lines := e.logged("Not running in the host's network namespace"); len(lines) != 1 || !strings.Contains(lines[0], "level=WARN") {
		t.Errorf("the log does not say where it runs: %q", lines)
	}
	e.client = &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, addr string) (conn net.Conn, err error) {
			// A socket stays in the namespace that it was made in.
			err = netns.Do(home.Path, func() (err error) {
				conn, err = net.Dial(network, addr)
				return err
			})
			return conn, err
		},
	}}
	before, names := nstat(t, nettest.Host()), nstatNames(t)
	s := e.scrape(t)
	s.check(t, 0, "veth_scrape_in_host_netns")
	compareTCP(t, s, names, "host", before, nstat(t, nettest.Host()))
	compared := 0
	for _, l := range nettest.Host().IPLink(t) {
		if l.LinkInfo.Kind == "" {
			s.check(t, float64(l.MTU), "veth_device_mtu_bytes", "netns", "host", "device", l.Ifname)
			compared++
		}
	}
	if compared == 0 {
		t.Error("the host has no devices to compare")
	}
	s.check(t, 1, "veth_netns_info", "netns", "host", "inode", fmt.Sprint(nettest.Host().Ino))
	s.check(t, 1, "veth_netns_info", "netns", inodeName(home))
	if got := len(s.find("veth_device_up", "netns", inodeName(home))); got != 1 {
		t.Errorf("%d devices of its own namespace, want lo", got)
	}
	if faults := s.faults(); faults != nil {
		t.Error(faults)
	}
}
