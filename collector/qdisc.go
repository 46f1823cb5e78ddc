package collector

import (
	"context"
	"slices"

	"github.com/vethexporter/vethexporter/internal/metric"
	"github.com/vethexporter/vethexporter/internal/netns"
)

// qdiscLabels tell a qdisc by its place: its handle may be another after each change.
var qdiscLabels = []string{metric.NetnsLabel, "device", "kind", "parent"}

func qdiscDef(typ metric.Type, name, source, help, meaning string) *metric.Def {
	return &metric.Def{
		Name: "veth_qdisc_" + name, Type: typ, Labels: qdiscLabels, Source: "RTM_GETQDISC: " + source, Help: help, Meaning: meaning,
	}
}

// qdiscNumbers are what every qdisc that has a queue counts.
var qdiscNumbers = []struct {
	def   *metric.Def
	value func(*netns.Qdisc) uint64
}{
	{qdiscDef(metric.Counter, "bytes_total", "TCA_STATS_BASIC bytes", "Bytes sent by this qdisc, of a root with leaves their sum.", "Traffic; share of each leaf."),
		func(q *netns.Qdisc) uint64 { return q.Bytes }},
	{qdiscDef(metric.Counter, "packets_total", "TCA_STATS_BASIC packets, TCA_STATS_PKT64", "Packets sent by this qdisc.", "Traffic."),
		func(q *netns.Qdisc) uint64 { return q.Packets }},
	{qdiscDef(metric.Counter, "drops_total", "TCA_STATS_QUEUE drops", "Packets dropped by this qdisc.", "Its queue is full: a shaper is too slow. On a local virtual device, a mistake."),
		func(q *netns.Qdisc) uint64 { return q.Drops }},
	{qdiscDef(metric.Counter, "requeues_total", "TCA_STATS_QUEUE requeues", "Packets put back as the device could not take them.", "The driver's ring, or a veth's peer, is full."),
		func(q *netns.Qdisc) uint64 { return q.Requeues }},
	{qdiscDef(metric.Counter, "overlimits_total", "TCA_STATS_QUEUE overlimits", "Times that a packet had to wait, or was dropped, for the qdisc's rate.", "The shaper is at work."),
		func(q *netns.Qdisc) uint64 { return q.Overlimits }},
	{qdiscDef(metric.Gauge, "backlog_bytes", "TCA_STATS_QUEUE backlog", "Bytes that wait in the queue now.", "Standing bytes are delay; divide by the rate."),
		func(q *netns.Qdisc) uint64 { return q.Backlog }},
	{qdiscDef(metric.Gauge, "backlog_packets", "TCA_STATS_QUEUE qlen", "Packets that wait in the queue now.", "Standing packets are delay."),
		func(q *netns.Qdisc) uint64 { return q.Waiting }},
}

// qdiscSettings are what a qdisc is set to; 0 means that it is not.
var qdiscSettings = []struct {
	def   *metric.Def
	value func(*netns.Qdisc) uint64
}{
	{qdiscDef(metric.Gauge, "rate_bytes_per_second", "TCA_OPTIONS", "Rate that the qdisc shapes to; for a leaf of HTB the rate of its class.", "What the queue is emptied at, at least."),
		func(q *netns.Qdisc) uint64 { return q.Rate }},
	{qdiscDef(metric.Gauge, "burst_bytes", "TCA_OPTIONS", "Bytes that may pass at once above the rate.", "Far above a few ms of the rate: the limit bites late, then hard."),
		func(q *netns.Qdisc) uint64 { return q.Burst }},
	{qdiscDef(metric.Gauge, "limit_bytes", "TCA_OPTIONS", "Bytes that may wait.", "Divided by the rate: the longest delay before drops."),
		func(q *netns.Qdisc) uint64 { return q.LimitBytes }},
	{qdiscDef(metric.Gauge, "limit_packets", "TCA_OPTIONS", "Packets that may wait.", "The backlog at which drops begin."),
		func(q *netns.Qdisc) uint64 { return q.LimitPackets }},
}

var (
	qdiscDelay = qdiscDef(metric.Gauge, "delay_seconds", "backlog and rate", "Estimated time that a packet waits now: the backlog over the rate.",
		"What this queue adds to each round trip.")
	qdiscApp = &metric.Def{
		Name: "veth_qdisc_app", Type: metric.Gauge, Labels: append(slices.Clone(qdiscLabels), "name"),
		Source: "RTM_GETQDISC: TCA_STATS_APP", Help: "Numbers of fq and fq_codel of their own, by the name that tc -s prints.",
		Meaning: "drop_overlimit and flows_plimit are drops, ecn_mark is congestion, throttled is pacing at work.",
	}
	qdiscUndecoded = &metric.Def{
		Name: "veth_qdisc_undecoded", Type: metric.Gauge, Labels: []string{metric.NetnsLabel},
		Source: "RTM_GETQDISC", Help: "Qdiscs left out as their numbers could not be decoded.",
		Meaning: "Above 0: a kind without the usual counters; the others are not affected.",
	}
)

// newQdisc returns the collector of queueing disciplines.
func newQdisc() *Collector {
	c := &Collector{Name: "qdisc", Default: true, Netns: collectQdiscs}
	for _, n := range slices.Concat(qdiscNumbers, qdiscSettings) {
		c.Metrics = append(c.Metrics, n.def)
	}
	c.Metrics = append(c.Metrics, qdiscDelay, qdiscApp, qdiscUndecoded)
	return c
}

func collectQdiscs(_ context.Context, v *netns.View, sink *metric.Sink) error {
	qdiscs, undecoded, err := v.Qdiscs()
	if err != nil {
		return err
	}
	for i := range qdiscs {
		q := &qdiscs[i]
		for _, n := range qdiscNumbers {
			sink.Emit(n.def, float64(n.value(q)), q.Device, q.Kind, q.Parent)
		}
		for _, n := range qdiscSettings {
			if value := n.value(q); value > 0 {
				sink.Emit(n.def, float64(value), q.Device, q.Kind, q.Parent)
			}
		}
		if q.Rate > 0 {
			sink.Emit(qdiscDelay, float64(q.Backlog)/float64(q.Rate), q.Device, q.Kind, q.Parent)
		}
		for _, stat := range q.App {
			sink.Emit(qdiscApp, float64(stat.Value), q.Device, q.Kind, q.Parent, stat.Name)
		}
	}
	sink.Emit(qdiscUndecoded, float64(undecoded))
	return nil
}
