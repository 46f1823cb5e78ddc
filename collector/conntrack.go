package collector

import (
	"context"

	"github.com/vethexporter/vethexporter/internal/metric"
	"github.com/vethexporter/vethexporter/internal/netns"
)

var (
	conntrackEntries = &metric.Def{
		Name: "veth_conntrack_entries", Type: metric.Gauge, Labels: []string{metric.NetnsLabel},
		Help:    "Connections tracked in this namespace.",
		Source:  "CTA_STATS_GLOBAL_ENTRIES, or net/stat/nf_conntrack column entries",
		Meaning: "At veth_conntrack_entries_limit new connections of this namespace fail.",
	}
	conntrackLimit = &metric.Def{
		Name: "veth_conntrack_entries_limit", Type: metric.Gauge,
		Help:    "The one limit of the node that each namespace's entries are held to.",
		Source:  "/proc/sys/net/netfilter/nf_conntrack_max",
		Meaning: "Compare with each namespace's entries, never with their sum.",
	}
	conntrackBuckets = &metric.Def{
		Name: "veth_conntrack_buckets", Type: metric.Gauge,
		Help:    "Buckets of the hash table that all namespaces share.",
		Source:  "/proc/sys/net/netfilter/nf_conntrack_buckets",
		Meaning: "Far fewer than the limit means long chains, and CPU time for each lookup.",
	}
)

// conntrackCounter declares one counter under the kernel's name for it.
func conntrackCounter(name, attribute, help, meaning string) *metric.Def {
	return &metric.Def{
		Name: "veth_conntrack_" + name + "_total", Type: metric.Counter, Labels: []string{metric.NetnsLabel},
		Help: help, Meaning: meaning, Source: attribute + ", or net/stat/nf_conntrack",
	}
}

// conntrackCounters are the counters that this kernel generation still keeps, by the place that netns gives them.
var conntrackCounters = []struct {
	id  int
	def *metric.Def
}{
	{netns.ConntrackFound, conntrackCounter("found", "CTA_STATS_FOUND",
		"Lookups for a free port or a duplicate that found an entry.", "Grows with NAT that has few ports to choose from.")},
	{netns.ConntrackInvalid, conntrackCounter("invalid", "CTA_STATS_INVALID",
		"Packets that could not be assigned to a connection.",
		"Late or out-of-window segments pass NAT untranslated, and the peer resets.")},
	{netns.ConntrackInsert, conntrackCounter("insert", "CTA_STATS_INSERT",
		"Entries inserted without the usual checks.", "Mostly the work of conntrackd or another user of ctnetlink.")},
	{netns.ConntrackInsertFailed, conntrackCounter("insert_failed", "CTA_STATS_INSERT_FAILED",
		"Entries that could not be inserted, as another connection held the tuple: the packet is dropped.",
		"New connections fail at any fill: two flows got the same port from NAT. Typical are DNS lookups of 5 s.")},
	{netns.ConntrackDrop, conntrackCounter("drop", "CTA_STATS_DROP",
		"Packets dropped because no entry could be made or inserted.", "New connections fail; with entries at the limit, the table is full.")},
	{netns.ConntrackEarlyDrop, conntrackCounter("early_drop", "CTA_STATS_EARLY_DROP",
		"Entries thrown out to make room for new ones, the table being full.", "Connections without an answer yet are lost; the table is full.")},
	{netns.ConntrackError, conntrackCounter("error", "CTA_STATS_ERROR",
		"Packets that broke a protocol's rules, as ICMP with a wrong checksum.", "Damaged or forged packets.")},
	{netns.ConntrackSearchRestart, conntrackCounter("search_restart", "CTA_STATS_SEARCH_RESTART",
		"Lookups that had to start again as the table changed under them.", "Grows with churn, and with a table too small for it.")},
	{netns.ConntrackClashResolve, conntrackCounter("clash_resolve", "CTA_STATS_CLASH_RESOLVE",
		"Clashes of two packets over one new entry that were resolved without loss (Linux 5.9).",
		"The race that older kernels count as insert_failed; harmless by itself.")},
	{netns.ConntrackChainTooLong, conntrackCounter("chain_toolong", "CTA_STATS_CHAIN_TOOLONG",
		"Entries not inserted because their bucket's chain was too long (Linux 5.15).",
		"New connections fail: too few buckets, or hashes chosen on purpose.")},
}

// newConntrack returns the collector of connection tracking.
func newConntrack() *Collector {
	c := &Collector{
		Name: "conntrack", Default: true, Node: conntrackNode, Netns: conntrackNetns,
		Metrics: []*metric.Def{conntrackEntries, conntrackLimit, conntrackBuckets},
	}
	for _, counter := range conntrackCounters {
		c.Metrics = append(c.Metrics, counter.def)
	}
	return c
}

// conntrackSettings are the node's two sysctls.
var conntrackSettings = []struct {
	file string
	def  *metric.Def
}{
	{"netfilter/nf_conntrack_max", conntrackLimit},
	{"netfilter/nf_conntrack_buckets", conntrackBuckets},
}

func conntrackNode(_ context.Context, v *netns.View, sink *metric.Sink) error {
	for _, setting := range conntrackSettings {
		value, err := sysctlNumber(v, setting.file)
		if err != nil {
			return err
		}
		sink.Emit(setting.def, float64(value))
	}
	return nil
}

func conntrackNetns(_ context.Context, v *netns.View, sink *metric.Sink) error {
	ct, err := v.Conntrack()
	if err != nil {
		return err
	}
	sink.Emit(conntrackEntries, float64(ct.Entries))
	for _, counter := range conntrackCounters {
		if ct.Has[counter.id] {
			sink.Emit(counter.def, float64(ct.Counters[counter.id]))
		}
	}
	return nil
}
