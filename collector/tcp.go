package collector

import (
	"context"
	"fmt"

	"github.com/vethexporter/vethexporter/internal/metric"
	"github.com/vethexporter/vethexporter/internal/netns"
)

// tcpCounter is one value of the TCP tables under the kernel's name (net/ipv4/proc.c).
type tcpCounter struct {
	table, kernel string
	def           *metric.Def
}

var tcpCounters = []tcpCounter{
	// Traffic, the denominator of every ratio.
	basicTCP("InSegs", "in_segs", "Segments received, also damaged ones.", "Traffic."),
	basicTCP("OutSegs", "out_segs", "Segments sent, but for pure retransmissions.", "Traffic; what retransmissions are compared with."),
	basicTCP("RetransSegs", "retrans_segs", "Segments sent again.", "Counts harmless tail probes too: see which of fast, timeout, SYN and probe grow with it."),
	basicTCP("ActiveOpens", "active_opens", "Connections opened from here.", "Connection churn: conntrack entries, ports, TIME_WAIT."),
	basicTCP("PassiveOpens", "passive_opens", "Connections accepted here.", "Connection churn."),
	basicTCP("AttemptFails", "attempt_fails", "Connections that failed while being opened.", "Refused or unanswered: nobody listens, or packets are lost."),
	basicTCP("EstabResets", "estab_resets", "Established connections that ended in a reset.", "With conntrack invalid packets: late segments that NAT let through."),
	basicTCP("OutRsts", "out_rsts", "Resets sent.", "Segments came for connections that this side does not know."),
	basicTCP("InErrs", "in_errs", "Segments received damaged.", "Wrong checksums, on overlays often a broken offload."),
	basicTCP("InCsumErrors", "in_csum_errors", "Segments received with a wrong checksum.", "A broken checksum offload on the way."),
	extTCP("TCPDelivered", "delivered", "Segments that the peer acknowledged as delivered.", "Traffic that arrived."),
	extTCP("TCPOrigDataSent", "orig_data_sent", "Data segments sent for the first time.", "What retransmitted data is compared with."),

	// Reordering: what the receiver holds back, and what the sender learns of it.
	extTCP("TCPOFOQueue", "ofo_queue", "Segments queued out of order at this receiver.", "Segments before them are late or lost. Which of both, the sender's SACK reorder and fast retransmit counters tell."),
	extTCP("TCPOFODrop", "ofo_drop", "Out-of-order segments dropped for want of receive memory.", "They must be sent again: raise tcp_rmem, or find what reorders."),
	extTCP("TCPOFOMerge", "ofo_merge", "Out-of-order segments that covered what was queued already.", "Duplicates among reordered segments."),
	extTCP("TCPSACKReorder", "sack_reorder", "Reorderings that this sender learned of through SACK.", "The path reorders: RPS, several queues, or a sender that moves between CPUs."),
	extTCP("TCPRenoReorder", "reno_reorder", "Reorderings detected without SACK, by duplicate acknowledgements.", "The path reorders, and a peer speaks no SACK."),
	extTCP("TCPTSReorder", "ts_reorder", "Reorderings detected by timestamps after a needless retransmission.", "The path reorders by more than tcp_reordering."),

	// Retransmissions by cause.
	extTCP("TCPFastRetrans", "fast_retrans", "Segments sent again on duplicate acknowledgements.", "Loss, or reordering that looks like it: then DSACKs come back in equal number."),
	extTCP("TCPSlowStartRetrans", "slow_start_retrans", "Segments sent again after a timeout.", "Whole windows were lost."),
	extTCP("TCPLostRetransmit", "lost_retransmit", "Retransmissions that were lost too.", "Heavy or lasting loss, as of a path that drops large packets."),
	extTCP("TCPSynRetrans", "syn_retrans", "SYN and SYN-ACK segments sent again.", "Connecting takes 1, 3, 7 ... s: the first packet is lost, or the listener is full."),
	extTCP("TCPRetransFail", "retrans_fail", "Retransmissions that the local stack could not send.", "The node's own queue or memory is full."),
	extTCP("TCPSpuriousRtxHostQueues", "spurious_rtx_host_queues", "Retransmissions not sent as the original still waits in this host.", "The delay is in our own qdisc or driver."),
	extTCP("TCPLossProbes", "loss_probes", "Tail loss probes sent.", "Normal in small numbers, as at the end of a burst."),
	extTCP("TCPLossProbeRecovery", "loss_probe_recovery", "Losses repaired by a tail loss probe.", "The end of bursts is lost."),
	extTCP("TCPTimeouts", "timeouts", "Retransmission timeouts.", "The worst way to find a loss: at least 200 ms of silence each."),
	extTCP("TCPSpuriousRTOs", "spurious_rtos", "Timeouts found needless by F-RTO.", "Delay jumped; nothing was lost."),
	extTCP("TCPSackRecovery", "sack_recovery", "Times that fast recovery began, by SACK.", "How many losses, where fast retransmits count segments."),
	extTCP("TCPRenoRecovery", "reno_recovery", "Times that fast recovery began, without SACK.", "How many losses, with peers that speak no SACK."),
	extTCP("TcpTimeoutRehash", "timeout_rehash", "Timeouts upon which the flow tried another path.", "Loss on one of several paths."),
	extTCP("TcpDuplicateDataRehash", "duplicate_data_rehash", "Times that this receiver chose another path as the peer repeats itself.", "Our acknowledgements are lost."),

	// Duplicates: the receiver's side, the sender's side, and what the sender took back.
	extTCP("TCPDSACKOldSent", "dsack_old_sent", "DSACKs sent for data received twice.", "The peer retransmits needlessly, or packets are duplicated."),
	extTCP("TCPDSACKOfoSent", "dsack_ofo_sent", "DSACKs sent for out-of-order data received twice.", "As dsack_old_sent."),
	extTCP("TCPDSACKRecv", "dsack_recv", "DSACKs received.", "Retransmissions were needless: near fast_retrans means reordering, not loss."),
	extTCP("TCPDSACKOfoRecv", "dsack_ofo_recv", "DSACKs received for out-of-order data.", "As dsack_recv."),
	extTCP("TCPDSACKRecvSegs", "dsack_recv_segs", "Segments reported by DSACKs received.", "How many segments were sent needlessly, or duplicated."),
	extTCP("TCPDSACKIgnoredOld", "dsack_ignored_old", "DSACKs that did not undo a recovery, being old.", "Needless retransmissions that still cost speed."),
	extTCP("TCPDSACKIgnoredNoUndo", "dsack_ignored_no_undo", "DSACKs that did not undo a recovery, as there was none to undo.", "Needless retransmissions that still cost speed."),
	extTCP("TCPDSACKIgnoredDubious", "dsack_ignored_dubious", "DSACKs not believed, as they report more than was retransmitted.", "Packets are duplicated on the way."),
	extTCP("TCPDSACKUndo", "dsack_undo", "Recoveries undone upon DSACKs.", "The sender saw that nothing had been lost."),
	extTCP("TCPFullUndo", "full_undo", "Recoveries undone before any retransmission was acknowledged.", "Reordering that looked like loss."),
	extTCP("TCPPartialUndo", "partial_undo", "Recoveries undone upon a partial acknowledgement.", "Reordering that looked like loss."),
	extTCP("TCPLossUndo", "loss_undo", "Timeout recoveries undone.", "Delay that looked like loss."),
	extTCP("DelayedACKLost", "delayed_ack_lost", "Delayed acknowledgements that came too late, as data was received twice.", "With DSACKs sent: packets are duplicated on the way."),

	// Receive memory and windows.
	extTCP("TCPRcvQDrop", "rcv_q_drop", "Segments dropped as the socket's receive memory was full.", "The application does not read, or tcp_rmem is too small."),
	extTCP("PruneCalled", "prune_called", "Times that a socket's receive queue was pruned for memory.", "The application does not read fast enough."),
	extTCP("RcvPruned", "rcv_pruned", "Times that pruning dropped data of the receive queue.", "Data must be sent again."),
	extTCP("OfoPruned", "ofo_pruned", "Times that pruning dropped data of the out-of-order queue.", "Data must be sent again."),
	extTCP("TCPRcvCollapsed", "rcv_collapsed", "Segments copied together to save receive memory.", "Small segments fill the socket's memory."),
	extTCP("TCPBacklogDrop", "backlog_drop", "Segments dropped as the socket's backlog was full while its owner held it.", "The application's CPU is too slow, or throttled."),
	extTCP("TCPZeroWindowDrop", "zero_window_drop", "Segments dropped as they came against a closed window.", "The peer probes an application that does not read."),
	extTCP("TCPToZeroWindowAdv", "to_zero_window_adv", "Times that the window offered to the peer went to zero.", "The application does not read fast enough."),
	extTCP("TCPWantZeroWindowAdv", "want_zero_window_adv", "Times that the window would have gone to zero but for the rule not to shrink it.", "As to_zero_window_adv."),
	extTCP("TCPMemoryPressures", "memory_pressures", "Times that TCP of the whole node came under memory pressure.", "Sockets hold more than the second value of tcp_mem."),
	extTCP("TCPAbortOnMemory", "abort_on_memory", "Connections aborted for want of memory, or too many orphans.", "tcp_mem or tcp_max_orphans is reached."),
	extTCP("PFMemallocDrop", "pf_memalloc_drop", "Segments dropped as they came in memory reserved for emergencies.", "The node is out of memory."),

	// Listening.
	extTCP("ListenOverflows", "listen_overflows", "Connections refused as the accept queue was full.", "The application accepts too slowly, or its backlog or somaxconn is too small in its own namespace."),
	extTCP("ListenDrops", "listen_drops", "SYNs and completed handshakes dropped by listeners, for any reason.", "Without overflows: memory, or the SYN queue."),
	extTCP("TCPReqQFullDoCookies", "req_q_full_do_cookies", "SYNs answered with a cookie as the SYN queue was full.", "A SYN flood, or tcp_max_syn_backlog too small."),
	extTCP("TCPReqQFullDrop", "req_q_full_drop", "SYNs dropped as the SYN queue was full.", "As req_q_full_do_cookies, with cookies off."),
	extTCP("SyncookiesSent", "syncookies_sent", "SYN cookies sent.", "The SYN queue was full."),
	extTCP("SyncookiesRecv", "syncookies_recv", "Valid SYN cookies that came back.", "Real clients among the flood."),
	extTCP("SyncookiesFailed", "syncookies_failed", "Acknowledgements that carried no valid SYN cookie.", "A flood of acknowledgements, or late ones."),
	extTCP("TCPDeferAcceptDrop", "defer_accept_drop", "Acknowledgements dropped as the socket defers accepting until data come.", "Normal with TCP_DEFER_ACCEPT."),

	// Ends of connections, and what guards them.
	extTCP("TCPAbortOnData", "abort_on_data", "Connections reset as data came after the close.", "The application closes early."),
	extTCP("TCPAbortOnClose", "abort_on_close", "Connections reset as they were closed with data unread.", "The application closes early."),
	extTCP("TCPAbortOnTimeout", "abort_on_timeout", "Connections given up after too many retransmissions.", "The peer, or the path to it, is gone."),
	extTCP("TCPTimeWaitOverflow", "time_wait_overflow", "Sockets not put into TIME_WAIT as there are tcp_max_tw_buckets of them.", "Too many short connections."),
	extTCP("PAWSActive", "paws_active", "SYN-ACKs dropped for an old timestamp.", "A peer behind NAT whose clock differs from another's."),
	extTCP("PAWSEstab", "paws_estab", "Segments dropped for an old timestamp.", "Very late segments: heavy reordering."),
	extTCP("TCPChallengeACK", "challenge_ack", "Challenge acknowledgements sent.", "Resets or SYNs that do not fit: stale connections, or an attack."),
	extTCP("TCPSYNChallenge", "syn_challenge", "Challenge acknowledgements sent upon a SYN.", "A peer reuses a port that this side still holds."),
	extTCP("OutOfWindowIcmps", "out_of_window_icmps", "ICMP errors ignored as they did not fit the connection.", "Late or forged errors; path MTU discovery may miss them."),
	extTCP("TCPMTUPFail", "mtup_fail", "Failed probes of packetization-layer path MTU discovery.", "The path takes less than tried."),
	extTCP("TCPMTUPSuccess", "mtup_success", "Successful probes of packetization-layer path MTU discovery.", "The path takes more than assumed."),
	extTCP("TCPDeliveredCE", "delivered_ce", "Segments delivered with the mark of congestion (ECN).", "Queues on the path are filling."),
	extTCP("TCPAckCompressed", "ack_compressed", "Selective acknowledgements held back to be sent as one.", "Many out-of-order segments in a row."),
	extTCP("TCPWqueueTooBig", "wqueue_too_big", "Segments not split as the send queue was too big.", "A peer asks for very small segments."),
}

// Two values that are no counters, or not in base units.
var (
	tcpCurrEstab = &metric.Def{
		Name: "veth_tcp_curr_estab", Type: metric.Gauge, Labels: []string{metric.NetnsLabel},
		Help: "Connections in ESTABLISHED or CLOSE_WAIT (Tcp CurrEstab).", Source: "/proc/net/snmp Tcp CurrEstab",
		Meaning: "Grows without end if the application leaks connections.",
	}
	tcpMemoryPressure = &metric.Def{
		Name: "veth_tcp_memory_pressures_chrono_seconds_total", Type: metric.Counter, Labels: []string{metric.NetnsLabel},
		Help: "Time that TCP of the whole node spent under memory pressure (TcpExt TCPMemoryPressuresChrono).", Source: "/proc/net/netstat TcpExt TCPMemoryPressuresChrono",
		Meaning: "Windows shrink and throughput falls while it grows.",
	}
)

func basicTCP(kernel, name, help, meaning string) tcpCounter {
	return newTCPCounter("Tcp", "snmp", kernel, name, help, meaning)
}

func extTCP(kernel, name, help, meaning string) tcpCounter {
	return newTCPCounter("TcpExt", "netstat", kernel, name, help, meaning)
}

func newTCPCounter(table, file, kernel, name, help, meaning string) tcpCounter {
	return tcpCounter{table: table, kernel: kernel, def: &metric.Def{
		Name: "veth_tcp_" + name + "_total", Type: metric.Counter, Labels: []string{metric.NetnsLabel}, Meaning: meaning,
		Help:   fmt.Sprintf("%s (%s %s).", help[:len(help)-1], table, kernel),
		Source: fmt.Sprintf("/proc/net/%s %s %s", file, table, kernel),
	}}
}

// newTCP returns the collector of each namespace's TCP counters. procfs's parser lacks 22 of the names of new kernels, and
// costs a hundred times as much.
func newTCP() *Collector {
	c := &Collector{Name: "tcp", Default: true, Metrics: []*metric.Def{tcpCurrEstab, tcpMemoryPressure}}
	table := newNetTable()
	table.want("Tcp", "CurrEstab", tcpCurrEstab)
	table.want("TcpExt", "TCPMemoryPressuresChrono", tcpMemoryPressure)
	for _, counter := range tcpCounters {
		c.Metrics = append(c.Metrics, counter.def)
		table.want(counter.table, counter.kernel, counter.def)
	}
	c.Netns = func(_ context.Context, v *netns.View, sink *metric.Sink) error {
		for _, file := range []string{"netstat", "snmp"} {
			b, err := v.NetFile(file)
			if err != nil {
				return err
			}
			if err := table.read(b, func(def *metric.Def, value int64) {
				if def == tcpMemoryPressure {
					sink.Emit(def, float64(value)/1000) // the kernel counts milliseconds
					return
				}
				sink.Emit(def, float64(value))
			}); err != nil {
				return parseError{fmt.Errorf("%s: %w", file, err)}
			}
		}
		return nil
	}
	return c
}
