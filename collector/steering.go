package collector

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/vethexporter/vethexporter/internal/metric"
	"github.com/vethexporter/vethexporter/internal/netns"
)

func queueGauge(name, source, help, meaning string, more ...string) *metric.Def {
	return &metric.Def{
		Name: "veth_" + name, Type: metric.Gauge, Labels: append([]string{metric.NetnsLabel, "device", "queue"}, more...),
		Source: "/sys/class/net/DEVICE/queues/" + source, Help: help, Meaning: meaning,
	}
}

func steeringGauge(name, source, help, meaning string, labels ...string) *metric.Def {
	return &metric.Def{Name: "veth_" + name, Type: metric.Gauge, Labels: labels, Source: source, Help: help, Meaning: meaning}
}

var (
	rpsCPUs = queueGauge("rps_cpus", "rx-N/rps_cpus",
		"CPUs that RPS may hand this receive queue's packets to.",
		"0: RPS is off, and the CPU that takes the interrupt, or sends into the veth, does all the work. Judge it only beside reordering or imbalance.")
	rpsInfo = queueGauge("rps_info", "rx-N/rps_cpus",
		"1 for each receive queue with its mask of CPUs.", "Compare the masks of devices.", "mask")
	rpsOffline = queueGauge("rps_offline_cpus", "rx-N/rps_cpus",
		"CPUs in the mask that are offline.", "The mask was made for another machine, or before CPUs went.")
	rpsFlowEntries = queueGauge("rps_flow_entries", "rx-N/rps_flow_cnt",
		"Size of this receive queue's table of flows for RFS (rps_flow_cnt).", "RFS works only if this and veth_rps_sock_flow_entries are above 0.")
	xpsCPUs = queueGauge("xps_cpus", "tx-N/xps_cpus",
		"CPUs that send through this transmit queue, for devices with several.", "0 on all: the flow's hash chooses.")
	receiveQueues = steeringGauge("device_receive_queues", "/sys/class/net/DEVICE/queues",
		"Receive queues in use.", "1 with RPS off: one CPU at a time receives.", metric.NetnsLabel, "device")
	rpsDefaultCPUs = steeringGauge("rps_default_cpus", "/proc/sys/net/core/rps_default_mask",
		"CPUs in the mask that new devices of this namespace get.", "0: new veths start with RPS off.", metric.NetnsLabel)
	rpsDrift = steeringGauge("rps_veth_drift_devices", "/sys/class/net/DEVICE/queues/rx-N/rps_cpus",
		"veth devices of this namespace with another RPS mask than most of them.", "Something sets masks for some pods and not for others, or late.", metric.NetnsLabel)
	rpsPartial = steeringGauge("rps_partial_devices", "/sys/class/net/DEVICE/queues/rx-N/rps_cpus",
		"Devices of this namespace with RPS on for some of their receive queues only.", "The mask was set for queue 0 and forgotten for the others.", metric.NetnsLabel)
	rpsMultiQueue = steeringGauge("rps_multiqueue_devices", "/sys/class/net/DEVICE/queues/rx-N/rps_cpus",
		"Physical devices of this namespace with several receive queues and RPS on.", "The hardware spreads already; RPS on top costs CPU and may reorder.", metric.NetnsLabel)
	rpsFlowDevices = steeringGauge("rps_flow_devices", "/sys/class/net/DEVICE/queues/rx-N/rps_flow_cnt",
		"Devices of this namespace with RFS flow entries.", "With veth_rps_sock_flow_entries at 0 they have half of RFS, which does nothing.", metric.NetnsLabel)
	rpsMaskedNoFlows = steeringGauge("rps_without_flow_devices", "/sys/class/net/DEVICE/queues/rx-N",
		"Devices of this namespace with RPS on but no RFS flow entries.", "With veth_rps_sock_flow_entries above 0 they have half of RFS, which does nothing.", metric.NetnsLabel)
	rpsSockFlowEntries = steeringGauge("rps_sock_flow_entries", "/proc/sys/net/core/rps_sock_flow_entries",
		"Size of the node's table of flows for RFS.", "RFS works only if this and veth_rps_flow_entries are above 0.")
	tcpReordering = steeringGauge("tcp_reordering", "/proc/sys/net/ipv4/tcp_reordering",
		"Segments that may arrive out of order before a sender takes them for lost, to begin with.", "Raising it hides reordering; look for the cause first.", metric.NetnsLabel)
)

// newSteering returns the collector of RPS, RFS and XPS.
func newSteering() *Collector {
	return &Collector{
		Name: "steering", Default: true, Netns: collectSteering,
		Metrics: []*metric.Def{
			rpsCPUs, rpsInfo, rpsOffline, rpsFlowEntries, xpsCPUs, receiveQueues, rpsDefaultCPUs, rpsDrift, rpsPartial,
			rpsMultiQueue, rpsFlowDevices, rpsMaskedNoFlows, rpsSockFlowEntries, tcpReordering,
		},
	}
}

// sysctlNumber reads one number of /proc/sys/net.
func sysctlNumber(v *netns.View, name string) (uint64, error) {
	b, err := v.Sysctl(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)
	if err != nil {
		return 0, parseError{fmt.Errorf("sysctl net/%s: %w", name, err)}
	}
	return n, nil
}

func collectSteering(_ context.Context, v *netns.View, sink *metric.Sink) error {
	devices, err := v.Steering()
	if err != nil {
		return err
	}
	online, err := v.OnlineCPUs()
	if err != nil {
		return err
	}
	var sum steeringSum
	for i := range devices {
		d := &devices[i]
		sink.Emit(receiveQueues, float64(len(d.Receive)), d.Device)
		if err := emitQueues(sink, d, online, &sum); err != nil {
			return parseError{fmt.Errorf("%s: %w", d.Device, err)}
		}
	}
	sink.Emit(rpsDrift, float64(sum.drift()))
	sink.Emit(rpsPartial, float64(sum.partial))
	sink.Emit(rpsMultiQueue, float64(sum.multiQueue))
	sink.Emit(rpsFlowDevices, float64(sum.flowDevices))
	sink.Emit(rpsMaskedNoFlows, float64(sum.maskedNoFlows))
	return emitSteeringSysctls(v, sink, online)
}

// emitSteeringSysctls emits the namespace's own settings, and the node's from the host's, where alone they are. An older
// kernel may lack the mask.
func emitSteeringSysctls(v *netns.View, sink *metric.Sink, online map[int]bool) error {
	if v.Namespace.Host {
		entries, err := sysctlNumber(v, "core/rps_sock_flow_entries")
		if err != nil {
			return err
		}
		sink.Emit(rpsSockFlowEntries, float64(entries))
	}
	reordering, err := sysctlNumber(v, "ipv4/tcp_reordering")
	if err != nil {
		return err
	}
	sink.Emit(tcpReordering, float64(reordering))
	b, err := v.Sysctl("core/rps_default_mask")
	if errors.Is(err, netns.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	cpus, _, err := netns.CPUMask(bytes.TrimSpace(b)).Count(online)
	if err != nil {
		return parseError{fmt.Errorf("rps_default_mask: %w", err)}
	}
	sink.Emit(rpsDefaultCPUs, float64(cpus))
	return nil
}

// steeringSum is what the queues of one namespace say together.
type steeringSum struct {
	vethMasks                  map[string]int
	partial, multiQueue        int
	flowDevices, maskedNoFlows int
}

// drift returns how many veths have another mask than most.
func (s *steeringSum) drift() int {
	all, most := 0, 0
	for _, n := range s.vethMasks {
		all += n
		most = max(most, n)
	}
	return all - most
}

func emitQueues(sink *metric.Sink, d *netns.Steering, online map[int]bool, sum *steeringSum) error {
	on, flows, masks := 0, uint64(0), ""
	for i, q := range d.Receive {
		queue := strconv.Itoa(i)
		cpus, offline, err := q.RPS.Count(online)
		if err != nil {
			return err
		}
		sink.Emit(rpsCPUs, float64(cpus), d.Device, queue)
		sink.Emit(rpsInfo, 1, d.Device, queue, string(q.RPS))
		sink.Emit(rpsOffline, float64(offline), d.Device, queue)
		sink.Emit(rpsFlowEntries, float64(q.FlowEntries), d.Device, queue)
		if cpus > 0 {
			on++
		}
		flows += q.FlowEntries
		masks += string(q.RPS) + " "
	}
	for i, mask := range d.Transmit {
		cpus, _, err := mask.Count(online)
		if err != nil {
			return err
		}
		sink.Emit(xpsCPUs, float64(cpus), d.Device, strconv.Itoa(i))
	}
	sum.add(d, on, flows, masks)
	return nil
}

func (s *steeringSum) add(d *netns.Steering, on int, flows uint64, masks string) {
	if d.Kind == "veth" {
		if s.vethMasks == nil {
			s.vethMasks = map[string]int{}
		}
		s.vethMasks[masks]++
	}
	if on > 0 && on < len(d.Receive) {
		s.partial++
	}
	if d.Kind == netns.KindPhysical && len(d.Receive) > 1 && on > 0 {
		s.multiQueue++
	}
	if flows > 0 {
		s.flowDevices++
	} else if on > 0 {
		s.maskedNoFlows++
	}
}
