package collector

import "github.com/vethexporter/vethexporter/internal/metric"

// outcome is how a namespace, or one run of a collector, fared in a scrape.
type outcome string

const (
	outcomeOK          outcome = "ok"
	outcomeGone        outcome = "gone"        // ended before it was read; normal
	outcomeDenied      outcome = "denied"      // a capability is missing; what needs none is there
	outcomeSkipped     outcome = "skipped"     // the deadline came first, or the read hangs
	outcomeFailed      outcome = "failed"      // a read or parse error
	outcomeCapped      outcome = "capped"      // more devices, series or namespaces than the limits allow
	outcomeExcluded    outcome = "excluded"    // by --netns.include or --netns.exclude; namespaces only
	outcomeUnsupported outcome = "unsupported" // this kernel lacks the source; collectors only
)

var (
	netnsOutcomes = []outcome{outcomeOK, outcomeGone, outcomeDenied, outcomeSkipped, outcomeFailed, outcomeCapped, outcomeExcluded}
	runOutcomes   = []outcome{outcomeOK, outcomeGone, outcomeDenied, outcomeSkipped, outcomeFailed, outcomeCapped, outcomeUnsupported}
)

// The reasons of veth_scrape_errors_total.
const (
	reasonRead  = "read"
	reasonParse = "parse"
	reasonHung  = "hung"
	reasonBug   = "bug"
)

var errorReasons = []string{reasonRead, reasonParse, reasonHung, reasonBug}

const ownSource = "vethexporter"

var (
	netnsInfo = &metric.Def{
		Name: "veth_netns_info", Type: metric.Gauge,
		Labels:  []string{metric.NetnsLabel, "container", "container_id", "pod", "namespace", "runtime", "inode", "source"},
		Help:    "1 for each container of each network namespace, or once for a namespace without any, with what is known of it.",
		Source:  "/proc/PID/ns/net, mounts of namespaces, Docker Engine API",
		Meaning: "Join it by netns to learn whose namespace it is. Several rows mean that containers share it.",
	}
	netnsProcesses = &metric.Def{
		Name: "veth_netns_processes", Type: metric.Gauge, Labels: []string{metric.NetnsLabel},
		Help: "Processes in this namespace.", Source: "/proc/PID/ns/net",
		Meaning: "0: only a mount keeps it, as a CNI plugin's or ip netns does. If that lasts after its pod, it leaks.",
	}
	netnsFirstSeen = &metric.Def{
		Name: "veth_netns_first_seen_timestamp_seconds", Type: metric.Gauge, Labels: []string{metric.NetnsLabel},
		Help: "When this exporter first entered the namespace, in Unix time.", Source: "NS_GET_ID or SO_NETNS_COOKIE, own clock",
		Meaning: "A change under the same name means another namespace, even if it got the same inode.",
	}
	scrapeNetns = &metric.Def{
		Name: "veth_scrape_netns", Type: metric.Gauge, Labels: []string{"outcome"},
		Help: "Namespaces of this scrape by how they fared.", Source: ownSource,
		Meaning: "denied: a capability is missing, see the log. skipped: raise the scrape timeout, or a read hangs.",
	}
	scrapeNetnsFound = &metric.Def{
		Name: "veth_scrape_netns_found", Type: metric.Gauge, Labels: []string{"source"},
		Help: "Namespaces by how they were found: by a process in them, or by a mount only.", Source: ownSource,
		Meaning: "mount that grows without end: namespaces leak.",
	}
	scrapeHidden = &metric.Def{
		Name: "veth_scrape_netns_unidentified", Type: metric.Gauge,
		Help: "Namespaces told apart by their /proc files only, as the kernel shows no ns/net of any process in them.", Source: ownSource,
		Meaning: "Above 0: CAP_SYS_PTRACE is missing.",
	}
	scrapeInHost = &metric.Def{
		Name: "veth_scrape_in_host_netns", Type: metric.Gauge,
		Help: "1 if the exporter runs in the node's own network namespace.", Source: ownSource,
		Meaning: "0 is fine with CAP_SYS_ADMIN: the exporter enters the host's.",
	}
	scrapeCollectorSuccess = &metric.Def{
		Name: "veth_scrape_collector_success", Type: metric.Gauge, Labels: []string{"collector"},
		Help: "1 if the collector failed, was denied or was skipped nowhere in this scrape.", Source: ownSource,
		Meaning: "0: veth_scrape_collector_runs tells in how many namespaces and how.",
	}
	scrapeCollectorDuration = &metric.Def{
		Name: "veth_scrape_collector_duration_seconds", Type: metric.Gauge, Labels: []string{"collector"},
		Help: "Time that the collector took in this scrape, over all namespaces.", Source: ownSource,
		Meaning: "Shows which collector to switch off if scrapes are slow.",
	}
	scrapeCollectorRuns = &metric.Def{
		Name: "veth_scrape_collector_runs", Type: metric.Gauge, Labels: []string{"collector", "outcome"},
		Help: "Runs of the collector in this scrape, one for each namespace, by how they fared.", Source: ownSource,
		Meaning: "unsupported is no fault: the kernel lacks the source.",
	}
	scrapeCollectorSeries = &metric.Def{
		Name: "veth_scrape_collector_series", Type: metric.Gauge, Labels: []string{"collector"},
		Help: "Series that the collector emitted in this scrape.", Source: ownSource,
		Meaning: "What the collector costs Prometheus.",
	}
	scrapeErrors = &metric.Def{
		Name: "veth_scrape_errors_total", Type: metric.Counter, Labels: []string{"collector", "reason"},
		Help: "Failed runs since the start, by reason: read, parse, hung or bug.", Source: ownSource,
		Meaning: "parse or bug: please report it with your kernel's version.",
	}
	scrapeDuration = &metric.Def{
		Name: "veth_scrape_duration_seconds", Type: metric.Gauge,
		Help: "Time that this scrape took until its numbers were complete.", Source: ownSource,
		Meaning: "Near the scrape timeout, namespaces will be skipped.",
	}
	scrapeDiscovery = &metric.Def{
		Name: "veth_scrape_discovery_duration_seconds", Type: metric.Gauge,
		Help: "Time that finding the namespaces took in this scrape.", Source: ownSource,
		Meaning: "Grows with the processes of the node.",
	}
	scrapeLostThreads = &metric.Def{
		Name: "veth_scrape_lost_threads", Type: metric.Gauge,
		Help: "Threads that were left behind in a slow or hanging read of the kernel, and are not back yet.", Source: ownSource,
		Meaning: "Above 0 for long: a kernel lock is stuck, as with namespaces that never finish their end.",
	}
)

// scrapeMetrics is the table of the scraper itself.
var scrapeMetrics = []*metric.Def{
	netnsInfo, netnsProcesses, netnsFirstSeen, scrapeNetns, scrapeNetnsFound, scrapeHidden, scrapeInHost,
	scrapeCollectorSuccess, scrapeCollectorDuration, scrapeCollectorRuns, scrapeCollectorSeries, scrapeErrors,
	scrapeDuration, scrapeDiscovery, scrapeLostThreads,
}
