package collector

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/vethexporter/vethexporter/internal/metric"
	"github.com/vethexporter/vethexporter/internal/netns"
)

func ethtoolDef(typ metric.Type, name, source, help, meaning string, labels ...string) *metric.Def {
	return &metric.Def{
		Name: "veth_ethtool_" + name, Type: typ, Labels: append(slices.Clone(deviceLabels), labels...),
		Source: source, Help: help, Meaning: meaning,
	}
}

var (
	ethtoolOffload = ethtoolDef(metric.Gauge, "offload_enabled", "ETHTOOL_MSG_FEATURES_GET",
		"1 if the offload is on, by the name that ethtool -k prints for it.",
		"0 for segmentation or generic-receive-offload multiplies the CPU for each byte; 0 for tx-checksumming on a tunnel may be a workaround.", "feature")
	ethtoolInfo = ethtoolDef(metric.Gauge, "info", "ETHTOOL_GDRVINFO, ETHTOOL_MSG_LINKMODES_GET",
		"1 for each physical device with its driver, duplex and autonegotiation.",
		"Half duplex is a failed negotiation.", "driver", "duplex", "autoneg")
	ethtoolRing = ethtoolDef(metric.Gauge, "ring_entries", "ETHTOOL_GRINGPARAM",
		"Size of the ring of a physical device.", "If packets are missed, make it larger, up to ring_max_entries.", "ring")
	ethtoolRingMax = ethtoolDef(metric.Gauge, "ring_max_entries", "ETHTOOL_GRINGPARAM",
		"Largest size that the ring may have.", "What is left to raise.", "ring")
	ethtoolChannels = ethtoolDef(metric.Gauge, "channels", "ETHTOOL_GCHANNELS",
		"Channels of a physical device in use.", "Fewer than CPUs: receiving is not spread as far as it could be.", "type")
	ethtoolChannelsMax = ethtoolDef(metric.Gauge, "channels_max", "ETHTOOL_GCHANNELS",
		"Most channels that the device has.", "What is left to raise; more than CPUs does not help.", "type")
	ethtoolStat = ethtoolDef(metric.Counter, "stat_total", "ETHTOOL_GSTATS",
		"Statistics of a physical device's driver about misses, drops, errors, missing buffers and a cloud's allowances, by the driver's name.",
		"Allowance counters: the cloud drops packets beyond what the instance may send. Drivers name the others each in their way.", "stat")
	ethtoolAvailable = ethtoolDef(metric.Gauge, "allowance_available", "ETHTOOL_GSTATS",
		"What a cloud says is left of an allowance, by the driver's name.",
		"Fresh only on a device with traffic; judge by the exceeded counters.", "stat")
)

// offloads are the features by ethtool's name, each with the kernel's features of which one suffices.
var offloads = []struct {
	name   string
	kernel []string
}{
	{"tcp-segmentation-offload", []string{"tx-tcp-segmentation"}},
	{"generic-segmentation-offload", []string{"tx-generic-segmentation"}},
	{"generic-receive-offload", []string{"rx-gro"}},
	{"tx-checksumming", []string{"tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"}},
	{"rx-checksumming", []string{"rx-checksum"}},
}

// Statistics that tell of loss or its cause, in the words of the drivers that are met on servers and in clouds.
var (
	statWanted    = regexp.MustCompile(`(?i)drop|discard|miss|err|fail|no_?buf|out_of_buf|no_desc|fifo|overrun|timeout|exceeded|crc`)
	statAvailable = regexp.MustCompile(`(?i)allowance_available$`)
)

// maxStats bounds the statistics of one device: some drivers count each queue apart.
const maxStats = 512

// newEthtool returns the collector of what drivers tell.
func newEthtool() *Collector {
	return &Collector{
		Name: "ethtool", Default: true, Netns: collectEthtool,
		Metrics: []*metric.Def{
			ethtoolOffload, ethtoolInfo, ethtoolRing, ethtoolRingMax, ethtoolChannels, ethtoolChannelsMax, ethtoolStat, ethtoolAvailable,
		},
	}
}

func collectEthtool(_ context.Context, v *netns.View, sink *metric.Sink) error {
	devices, err := v.Offloads()
	if err != nil {
		return err
	}
	for i := range devices {
		for _, o := range offloads {
			if on, known := devices[i].On(o.kernel...); known {
				sink.Emit(ethtoolOffload, truth(on), devices[i].Device, o.name)
			}
		}
	}
	hardware, err := v.Hardware()
	if err != nil {
		return err
	}
	for i := range hardware {
		emitHardware(sink, &hardware[i])
	}
	return nil
}

func emitHardware(sink *metric.Sink, h *netns.Hardware) {
	sink.Emit(ethtoolInfo, 1, h.Device, h.Driver, h.Duplex, h.Autoneg)
	pair := func(now, most *metric.Def, what string, n, limit uint32) {
		if limit > 0 { // a kind that the device does not have
			sink.Emit(now, float64(n), h.Device, what)
			sink.Emit(most, float64(limit), h.Device, what)
		}
	}
	if r := h.Rings; r != nil {
		pair(ethtoolRing, ethtoolRingMax, "receive", r.RxPending, r.RxMaxPending)
		pair(ethtoolRing, ethtoolRingMax, "transmit", r.TxPending, r.TxMaxPending)
	}
	if c := h.Channels; c != nil {
		pair(ethtoolChannels, ethtoolChannelsMax, "receive", c.RxCount, c.MaxRx)
		pair(ethtoolChannels, ethtoolChannelsMax, "transmit", c.TxCount, c.MaxTx)
		pair(ethtoolChannels, ethtoolChannelsMax, "combined", c.CombinedCount, c.MaxCombined)
		pair(ethtoolChannels, ethtoolChannelsMax, "other", c.OtherCount, c.MaxOther)
	}
	emitStats(sink, h)
}

// emitStats emits the wanted statistics in the order of their names. Names that are the same once cleaned up are one.
func emitStats(sink *metric.Sink, h *netns.Hardware) {
	emitted := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(h.Stats)) {
		def := ethtoolStat
		if statAvailable.MatchString(name) {
			def = ethtoolAvailable
		} else if !statWanted.MatchString(name) {
			continue
		}
		label := strings.TrimSpace(strings.ToValidUTF8(name, "\uFFFD"))
		if emitted[label] || len(emitted) == maxStats {
			continue
		}
		emitted[label] = true
		sink.Emit(def, float64(h.Stats[name]), h.Device, label)
	}
}
