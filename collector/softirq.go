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

var softirqs = &metric.Def{
	Name: "veth_softirqs_total", Type: metric.Counter, Labels: []string{"cpu", "type"},
	Help:    "Network softirqs run by this CPU, of type NET_RX or NET_TX.",
	Source:  "/proc/softirqs",
	Meaning: "NET_RX on one CPU only: interrupts are not spread, or RPS is off.",
}

// newSoftirq returns the collector of network softirqs.
func newSoftirq() *Collector {
	return &Collector{
		Name: "softirq", Default: true, Metrics: []*metric.Def{softirqs},
		Node: func(_ context.Context, v *netns.View, sink *metric.Sink) error {
			b, err := v.ProcFile("softirqs")
			if err != nil {
				return err
			}
			if err := parseSoftirqs(b, func(cpu, kind string, count uint64) {
				if kind == "NET_RX" || kind == "NET_TX" {
					sink.Emit(softirqs, float64(count), cpu, kind)
				}
			}); err != nil {
				return parseError{fmt.Errorf("softirqs: %w", err)}
			}
			return nil
		},
	}
}

// parseSoftirqs reads the table of /proc/softirqs. Its header names the CPUs, which need not be numbered without a gap;
// procfs's parser numbers the columns instead.
func parseSoftirqs(b []byte, each func(cpu, kind string, count uint64)) error {
	header, rows, _ := bytes.Cut(b, []byte("\n"))
	var cpus []string
	for field := range bytes.FieldsSeq(header) {
		cpu, ok := bytes.CutPrefix(field, []byte("CPU"))
		if _, err := strconv.ParseUint(string(cpu), 10, 32); !ok || err != nil {
			return fmt.Errorf("header names %q", field)
		}
		cpus = append(cpus, string(cpu))
	}
	if len(cpus) == 0 {
		return errors.New("no header")
	}
	for line := range bytes.Lines(rows) {
		kind, counts, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			return fmt.Errorf("line %q has no name", line)
		}
		fields := bytes.Fields(counts)
		if len(fields) != len(cpus) {
			return fmt.Errorf("%s: %d columns for %d CPUs", bytes.TrimSpace(kind), len(fields), len(cpus))
		}
		for i, field := range fields {
			count, err := strconv.ParseUint(string(field), 10, 64)
			if err != nil {
				return fmt.Errorf("%s: %w", bytes.TrimSpace(kind), err)
			}
			each(cpus[i], string(bytes.TrimSpace(kind)), count)
		}
	}
	return nil
}
