package collector

import (
	"context"
	"strconv"

	"github.com/vethexporter/vethexporter/internal/metric"
	"github.com/vethexporter/vethexporter/internal/netns"
)

var deviceLabels = []string{metric.NetnsLabel, "device"}

func deviceGauge(name, source, help, meaning string) *metric.Def {
	return &metric.Def{
		Name: "veth_device_" + name, Type: metric.Gauge, Labels: deviceLabels, Source: source, Help: help, Meaning: meaning,
	}
}

var (
	deviceInfo = &metric.Def{
		Name: "veth_device_info", Type: metric.Gauge,
		Labels:  []string{metric.NetnsLabel, "device", "kind", "ifindex", "address", "master"},
		Help:    "1 for each device, with its kind as ip -d link prints it (else loopback or physical), index, hardware address and the bridge or bond that it is a port of.",
		Source:  "RTM_GETLINK: IFLA_INFO_KIND, IFLA_ADDRESS, IFLA_MASTER",
		Meaning: "Join it to tell devices apart by kind instead of by name.",
	}
	deviceUp = deviceGauge("up", "RTM_GETLINK: IFF_UP",
		"1 if the device is administratively up.", "0: somebody or something took it down.")
	deviceCarrier = deviceGauge("carrier", "RTM_GETLINK: IFLA_CARRIER",
		"1 if the device has a carrier; a veth has one while its peer is up. Absent while the device is down.", "0: the other end is down or gone.")
	deviceMTU = deviceGauge("mtu_bytes", "RTM_GETLINK: IFLA_MTU",
		"Largest packet that the device takes.", "Differs between the ends of a path: large packets hang while small ones pass.")
	deviceSpeed = deviceGauge("speed_bytes_per_second", "ETHTOOL_A_LINKMODES_SPEED",
		"Negotiated speed of a physical device in one direction.", "Lower than the hardware's: a bad cable or port.")
	deviceCarrierChanges = deviceCounter("carrier_changes_total", "IFLA_CARRIER_CHANGES",
		"Times that the carrier came or went.", "The link flaps.")
)

func deviceCounter(name, field, help, meaning string) *metric.Def {
	source := "rtnl_link_stats64: " + field
	if field == "IFLA_CARRIER_CHANGES" {
		source = "RTM_GETLINK: " + field
	}
	return &metric.Def{
		Name: "veth_device_" + name, Type: metric.Counter, Labels: deviceLabels, Source: source, Help: help, Meaning: meaning,
	}
}

// deviceCounters are the counters of rtnl_link_stats64. Those of hardware can only be 0 on a virtual device, and are left out
// there.
var deviceCounters = []struct {
	id       int
	hardware bool
	def      *metric.Def
}{
	{netns.ReceiveBytes, false, deviceCounter("receive_bytes_total", "rx_bytes",
		"Bytes received.", "Traffic.")},
	{netns.TransmitBytes, false, deviceCounter("transmit_bytes_total", "tx_bytes",
		"Bytes sent.", "Traffic.")},
	{netns.ReceivePackets, false, deviceCounter("receive_packets_total", "rx_packets",
		"Packets received; merged ones count as one.", "Traffic; few bytes for each packet cost the most CPU.")},
	{netns.TransmitPackets, false, deviceCounter("transmit_packets_total", "tx_packets",
		"Packets sent; those to be segmented later count as one.", "Traffic.")},
	{netns.ReceiveErrors, false, deviceCounter("receive_errors_total", "rx_errors",
		"Packets received damaged.", "Cable, port or driver; on a tunnel, packets that it cannot decode.")},
	{netns.TransmitErrors, false, deviceCounter("transmit_errors_total", "tx_errors",
		"Packets that could not be sent.", "Driver or carrier; on a tunnel, no route or no neighbour.")},
	{netns.ReceiveDropped, false, deviceCounter("receive_dropped_total", "rx_dropped",
		"Packets received whole and dropped, also for a protocol that nobody listens to.",
		"Not loss by itself: unknown protocols count. On a veth it mirrors the peer's transmit drops.")},
	{netns.TransmitDropped, false, deviceCounter("transmit_dropped_total", "tx_dropped",
		"Packets dropped on the way out.", "On a veth: the peer is down, its queue or its CPU's backlog full.")},
	{netns.Multicast, false, deviceCounter("receive_multicast_total", "multicast",
		"Multicast packets received.", "Floods cost CPU on every port of a bridge.")},
	{netns.ReceiveNoHandler, false, deviceCounter("receive_nohandler_total", "rx_nohandler",
		"Packets dropped as the device is an inactive port of a bond or team.", "Normal on such a port.")},
	{netns.ReceiveOtherhostDropped, false, deviceCounter("receive_otherhost_dropped_total", "rx_otherhost_dropped",
		"Packets dropped as their destination hardware address is another's (Linux 5.19).",
		"On a tunnel: peers send to a stale hardware address; no other counter moves.")},
	{netns.ReceiveMissedErrors, true, deviceCounter("receive_missed_total", "rx_missed_errors",
		"Packets that the hardware dropped for want of buffers.", "The ring is too small or the CPU too slow: look here first.")},
	{netns.ReceiveFIFOErrors, true, deviceCounter("receive_fifo_total", "rx_fifo_errors",
		"Receive FIFO overruns of the hardware.", "As missed packets: the host does not fetch them in time.")},
	{netns.ReceiveOverErrors, true, deviceCounter("receive_over_total", "rx_over_errors",
		"Packets that overran the receiver.", "As missed packets.")},
	{netns.ReceiveCRCErrors, true, deviceCounter("receive_crc_errors_total", "rx_crc_errors",
		"Packets with a wrong checksum on the wire.", "Cable, transceiver or port.")},
	{netns.ReceiveFrameErrors, true, deviceCounter("receive_frame_errors_total", "rx_frame_errors",
		"Packets with a broken frame.", "Cable, transceiver or port.")},
	{netns.ReceiveLengthErrors, true, deviceCounter("receive_length_errors_total", "rx_length_errors",
		"Packets of a wrong length.", "A peer with a larger MTU.")},
	{netns.TransmitFIFOErrors, true, deviceCounter("transmit_fifo_total", "tx_fifo_errors",
		"Transmit FIFO underruns of the hardware.", "Bus or memory too slow.")},
	{netns.TransmitAbortedErrors, true, deviceCounter("transmit_aborted_total", "tx_aborted_errors",
		"Transmissions aborted.", "Half-duplex trouble or a broken link.")},
	{netns.TransmitCarrierErrors, true, deviceCounter("transmit_carrier_errors_total", "tx_carrier_errors",
		"Transmissions that failed for want of a carrier.", "Cable or port.")},
	{netns.Collisions, true, deviceCounter("collisions_total", "collisions",
		"Collisions while sending.", "A half-duplex link: a failed negotiation.")},
}

// newDevice returns the collector of network devices.
func newDevice() *Collector {
	c := &Collector{
		Name: "device", Default: true, Netns: collectDevices,
		Metrics: []*metric.Def{deviceInfo, deviceUp, deviceCarrier, deviceCarrierChanges, deviceMTU, deviceSpeed},
	}
	for _, counter := range deviceCounters {
		c.Metrics = append(c.Metrics, counter.def)
	}
	return c
}

func collectDevices(_ context.Context, v *netns.View, sink *metric.Sink) error {
	links, capped, err := v.Links()
	if err != nil {
		return err
	}
	for i := range links {
		l := &links[i]
		if v.Entered {
			emitDevice(sink, links, l)
		}
		for _, counter := range deviceCounters {
			if counter.id < l.Counted && (!counter.hardware || l.Kind == netns.KindPhysical) {
				sink.Emit(counter.def, float64(l.Counters[counter.id]), l.Name)
			}
		}
	}
	if capped {
		return metric.ErrCapped
	}
	return nil
}

// emitDevice emits what only the view from inside tells of a device.
func emitDevice(sink *metric.Sink, links []netns.Link, l *netns.Link) {
	sink.Emit(deviceInfo, 1, l.Name, l.Kind, strconv.Itoa(int(l.Index)), l.Address, masterName(links, l.Master))
	sink.Emit(deviceUp, truth(l.Up), l.Name)
	if l.HasCarrier && l.Up { // while it is down the kernel tells the last state, or a default
		sink.Emit(deviceCarrier, truth(l.Carrier), l.Name)
	}
	sink.Emit(deviceCarrierChanges, float64(l.CarrierChanges), l.Name)
	sink.Emit(deviceMTU, float64(l.MTU), l.Name)
	if l.SpeedMegabits > 0 {
		sink.Emit(deviceSpeed, float64(l.SpeedMegabits)*1e6/8, l.Name)
	}
}

func masterName(links []netns.Link, index int32) string {
	if index != 0 {
		if at, ok := netns.FindLink(links, index); ok {
			return links[at].Name
		}
	}
	return ""
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
