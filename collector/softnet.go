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

const softnetSource = "/proc/net/softnet_stat, column "

// softnetColumns are the columns of softnet_stat that carry a number, by their place (net/core/net-procfs.c). Column 12 is
// the CPU. The file is the same in every namespace. procfs's parser ends before the two parts of the queue.
var softnetColumns = map[int]*metric.Def{
	0: {Name: "veth_softnet_processed_total", Type: metric.Counter, Labels: []string{"cpu"},
		Help:    "Packets taken from the backlog or a device's queue by this CPU.",
		Meaning: "One CPU with most of the sum is the bottleneck of receiving.", Source: softnetSource + "1"},
	1: {Name: "veth_softnet_dropped_total", Type: metric.Counter, Labels: []string{"cpu"},
		Help:    "Packets dropped because this CPU's backlog was full (netdev_max_backlog).",
		Meaning: "Loss inside the node: a veth or RPS hands this CPU more than it processes.", Source: softnetSource + "2"},
	2: {Name: "veth_softnet_time_squeezed_total", Type: metric.Counter, Labels: []string{"cpu"},
		Help:    "Times that receiving stopped with work left, at netdev_budget packets or netdev_budget_usecs.",
		Meaning: "Load; normal by itself, a fault only with drops beside it.", Source: softnetSource + "3"},
	8: {Name: "veth_softnet_cpu_collision_total", Type: metric.Counter, Labels: []string{"cpu"},
		Help:    "Times that this CPU found the lock of a device's transmit queue taken.",
		Meaning: "Always 0 since Linux 4.7.", Source: softnetSource + "9"},
	9: {Name: "veth_softnet_received_rps_total", Type: metric.Counter, Labels: []string{"cpu"},
		Help:    "Times that another CPU handed this one packets through RPS.",
		Meaning: "Shows where rps_cpus sends the packets; 0 everywhere means that RPS is off.", Source: softnetSource + "10"},
	10: {Name: "veth_softnet_flow_limit_total", Type: metric.Counter, Labels: []string{"cpu"},
		Help:    "Packets dropped because one flow filled this CPU's backlog (flow_limit_cpu_bitmap).",
		Meaning: "One large flow is shed so that the small ones live.", Source: softnetSource + "11"},
	11: {Name: "veth_softnet_backlog_packets", Type: metric.Gauge, Labels: []string{"cpu"},
		Help:    "Packets that wait in this CPU's backlog now.",
		Meaning: "Near netdev_max_backlog means drops.", Source: softnetSource + "12"},
	13: {Name: "veth_softnet_input_queue_packets", Type: metric.Gauge, Labels: []string{"cpu"},
		Help:    "Packets of the backlog that are not taken up yet.",
		Meaning: "The part of the backlog that counts against netdev_max_backlog first.", Source: softnetSource + "14"},
	14: {Name: "veth_softnet_process_queue_packets", Type: metric.Gauge, Labels: []string{"cpu"},
		Help:    "Packets of the backlog that are being processed.",
		Meaning: "Work under way on this CPU.", Source: softnetSource + "15"},
}

const softnetCPUColumn = 12

// newSoftnet returns the collector of each CPU's packet backlog.
func newSoftnet() *Collector {
	c := &Collector{Name: "softnet", Default: true}
	for column := range softnetCPUColumn + 3 {
		if def, ok := softnetColumns[column]; ok {
			c.Metrics = append(c.Metrics, def)
		}
	}
	c.Node = func(_ context.Context, v *netns.View, sink *metric.Sink) error {
		b, err := v.NetFile("softnet_stat")
		if err != nil {
			return err
		}
		rows, err := parseSoftnet(b)
		if err != nil {
			return parseError{fmt.Errorf("softnet_stat: %w", err)}
		}
		for _, row := range rows {
			cpu := strconv.FormatUint(row.cpu, 10)
			for column, value := range row.columns {
				if def, ok := softnetColumns[column]; ok {
					sink.Emit(def, float64(value), cpu)
				}
			}
		}
		return nil
	}
	return c
}

type softnetRow struct {
	cpu     uint64
	columns []uint64
}

// parseSoftnet reads one line of hexadecimal columns for each online CPU. Kernels before 5.14 do not name the CPU: there
// the line's number stands for it, which is right as long as no CPU is offline.
func parseSoftnet(b []byte) ([]softnetRow, error) {
	var rows []softnetRow
	for line := range bytes.Lines(b) {
		row := softnetRow{cpu: uint64(len(rows))}
		for field := range bytes.FieldsSeq(line) {
			value, err := strconv.ParseUint(string(field), 16, 32)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", len(rows)+1, err)
			}
			row.columns = append(row.columns, value)
		}
		if len(row.columns) < 9 {
			return nil, fmt.Errorf("line %d: %d columns, want at least 9", len(rows)+1, len(row.columns))
		}
		if len(row.columns) > softnetCPUColumn {
			row.cpu = row.columns[softnetCPUColumn]
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return nil, errors.New("no line for any CPU")
	}
	return rows, nil
}
