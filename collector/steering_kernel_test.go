package collector

import (
	"bufio"
	"bytes"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/vethexporter/vethexporter/internal/nettest"
)

// A mask on the first of four queues leaves the others off, and veths whose mask differs from most are counted.
func TestSteering(t *testing.T) {
	hub := nettest.New(t)
	var pods []*nettest.NS
	for i := range 5 {
		pod := nettest.New(t)
		nettest.Veth(t, hub, fmt.Sprintf("pod%d", i), pod, "eth0", nettest.Queues(4))
		pods = append(pods, pod)
	}
	for _, i := range []int{0, 1} {
		hub.Sysfs(t, fmt.Sprintf("pod%d/queues/rx-0/rps_cpus", i), "1")
	}
	pods[0].Sysfs(t, "eth0/queues/rx-0/rps_cpus", "3")
	pods[0].Sysfs(t, "eth0/queues/rx-2/rps_flow_cnt", "256")
	pods[0].Sysctl(t, "net.ipv4.tcp_reordering", "7")
	w := newWorld(t, []*Collector{newSteering()}, append([]*nettest.NS{hub}, pods...)...)
	got := w.scrape()

	pod, hubName := got.name(t, pods[0]), got.name(t, hub)
	for queue := range 4 {
		mask := pods[0].SysfsGet(t, fmt.Sprintf("eth0/queues/rx-%d/rps_cpus", queue))
		got.value(t, `veth_rps_info{netns=%q,device="eth0",queue="%d",mask=%q}`, pod, queue, mask)
		want, _ := strconv.ParseFloat(map[string]string{"3": "2", "1": "1", "0": "0"}[mask], 64)
		if v := got.value(t, `veth_rps_cpus{netns=%q,device="eth0",queue="%d"}`, pod, queue); v != want {
			t.Errorf("queue %d has %v CPUs, its mask is %s", queue, v, mask)
		}
		flows, _ := strconv.ParseFloat(pods[0].SysfsGet(t, fmt.Sprintf("eth0/queues/rx-%d/rps_flow_cnt", queue)), 64)
		if v := got.value(t, `veth_rps_flow_entries{netns=%q,device="eth0",queue="%d"}`, pod, queue); v != flows {
			t.Errorf("queue %d has %v flow entries, want %v", queue, v, flows)
		}
	}
	for series, want := range map[string]float64{
		fmt.Sprintf(`veth_rps_veth_drift_devices{netns=%q}`, hubName):               2,
		fmt.Sprintf(`veth_rps_partial_devices{netns=%q}`, hubName):                  2,
		fmt.Sprintf(`veth_rps_partial_devices{netns=%q}`, pod):                      1,
		fmt.Sprintf(`veth_rps_flow_devices{netns=%q}`, pod):                         1,
		fmt.Sprintf(`veth_rps_without_flow_devices{netns=%q}`, hubName):             2,
		fmt.Sprintf(`veth_rps_multiqueue_devices{netns=%q}`, hubName):               0,
		fmt.Sprintf(`veth_device_receive_queues{netns=%q,device="eth0"}`, pod):      4,
		fmt.Sprintf(`veth_tcp_reordering{netns=%q}`, pod):                           7,
		fmt.Sprintf(`veth_rps_offline_cpus{netns=%q,device="eth0",queue="0"}`, pod): float64(max(2-runtime.NumCPU(), 0)),
	} {
		if v := got.value(t, "%s", series); v != want {
			t.Errorf("%s = %v, want %v", series, v, want)
		}
	}
	if v := got.value(t, "veth_rps_sock_flow_entries"); strconv.FormatFloat(v, 'f', -1, 64) != nettest.Host().SysctlGet(t, "net.core.rps_sock_flow_entries") {
		t.Errorf("the node's table has %v entries", v)
	}

	// What is kept between scrapes must show the next change.
	pods[0].Sysfs(t, "eth0/queues/rx-1/rps_cpus", "1")
	got = w.scrape()
	if v := got.value(t, `veth_rps_cpus{netns=%q,device="eth0",queue="1"}`, pod); v != 1 {
		t.Errorf("after the change queue 1 has %v CPUs, want 1", v)
	}
}

// What steering keeps of a namespace between scrapes does not keep the namespace.
func TestSteeringPinsNothing(t *testing.T) {
	hub, pod := nettest.New(t), nettest.New(t)
	nettest.Veth(t, hub, "pod", pod, "eth0")
	w := newWorld(t, []*Collector{newSteering(), newPair(), newQdisc(), newEthtool()}, hub, pod)
	w.scrape()
	w.scrape()
	pod.Delete(t)
	hub.WaitNoLink(t, "pod", 5e9)
	fds := nettest.OpenFDs()
	for range 5 {
		w.scrape()
	}
	if now := nettest.OpenFDs(); now > fds {
		t.Errorf("%d descriptors, %d after the namespace ended", fds, now)
	}
}

// Offloads are as ethtool prints them, also after a change; loopback has none that matter.
func TestOffloads(t *testing.T) {
	a, b := nettest.Pair(t)
	a.Exec(t, "ip", "link", "add", "vx0", "type", "vxlan", "id", "7", "dstport", "4789", "remote", b.IP)
	w := newWorld(t, []*Collector{newEthtool()}, a, b)
	for _, change := range [][]string{{"gro", "on"}, {"tso", "off"}, {"gso", "off"}, {"tx", "off"}, {"rx", "off"}} {
		a.Exec(t, nettest.Tool(t, "ethtool"), "-K", "eth0", change[0], change[1])
		got := w.scrape()
		for _, device := range []string{"eth0", "vx0"} {
			printed := ethtoolFeatures(a.Exec(t, nettest.Tool(t, "ethtool"), "-k", device))
			for _, o := range offloads {
				v := got.value(t, `veth_ethtool_offload_enabled{netns=%q,device=%q,feature=%q}`, got.name(t, a), device, o.name)
				if want := printed[o.name]; (v == 1) != (want == "on") {
					t.Errorf("after %v: %s of %s = %v, ethtool says %s", change, o.name, device, v, want)
				}
			}
		}
		got.absent(t, `veth_ethtool_offload_enabled{netns=%q,device="lo"`, got.name(t, a))
	}
}

// ethtoolFeatures reads what ethtool -k prints.
func ethtoolFeatures(out []byte) map[string]string {
	features := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		if name, state, ok := strings.Cut(lines.Text(), ":"); ok && !strings.HasPrefix(name, "\t") {
			features[name], _, _ = strings.Cut(strings.TrimSpace(state), " ")
		}
	}
	return features
}

// The drivers of this machine's physical devices say what ethtool prints.
func TestHardware(t *testing.T) {
	tool := nettest.Tool(t, "ethtool")
	got := newWorld(t, []*Collector{newEthtool(), newDevice()}).scrape()
	devices := 0
	for series := range got {
		name, ok := strings.CutPrefix(series, `veth_ethtool_info{netns="host",device="`)
		if !ok {
			continue
		}
		devices++
		name, _, _ = strings.Cut(name, `"`)
		if out, err := nettest.Host().TryExec(t, tool, "-i", name); err == nil {
			driver, _, _ := strings.Cut(strings.TrimPrefix(string(out), "driver: "), "\n")
			got.value(t, "%s", fmt.Sprintf(`veth_ethtool_info{netns="host",device=%q,driver=%q,`, name, driver)+strings.SplitN(series, ",", 4)[3])
		}
		if out, err := nettest.Host().TryExec(t, tool, "-g", name); err == nil {
			_, now, _ := strings.Cut(string(out), "Current hardware settings:")
			want, _ := strconv.ParseFloat(ethtoolFeatures([]byte(now))["RX"], 64)
			if v := got.value(t, `veth_ethtool_ring_entries{netns="host",device=%q,ring="receive"}`, name); v != want {
				t.Errorf("ring of %s has %v entries, ethtool says %v", name, v, want)
			}
		}
		if out, err := nettest.Host().TryExec(t, tool, "-l", name); err == nil {
			_, now, _ := strings.Cut(string(out), "Current hardware settings:")
			if want, err := strconv.ParseFloat(ethtoolFeatures([]byte(now))["Combined"], 64); err == nil {
				if v := got.value(t, `veth_ethtool_channels{netns="host",device=%q,type="combined"}`, name); v != want {
					t.Errorf("%s has %v channels, ethtool says %v", name, v, want)
				}
			}
		}
		if out, err := nettest.Host().TryExec(t, tool, "-S", name); err == nil {
			for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
				stat, value, ok := strings.Cut(strings.TrimSpace(lines.Text()), ": ")
				if ok && statWanted.MatchString(stat) {
					want, _ := strconv.ParseFloat(value, 64)
					if v := got.value(t, `veth_ethtool_stat_total{netns="host",device=%q,stat=%q}`, name, stat); v != want {
						t.Errorf("%s of %s = %v, ethtool says %v", stat, name, v, want)
					}
				}
			}
		}
	}
	t.Logf("%d physical devices", devices)
}
