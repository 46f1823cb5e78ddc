package collector

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/vethexporter/vethexporter/internal/metric"
)

func TestDefsKeepTheRules(t *testing.T) {
	names, collectors := map[string]bool{}, map[string]bool{}
	for _, g := range Groups() {
		if collectors[g.Name] || !regexp.MustCompile(`^[a-z][a-z0-9]*$`).MatchString(g.Name) {
			t.Errorf("collector %q is there twice, or no name for a flag", g.Name)
		}
		collectors[g.Name] = true
		if len(g.Metrics) == 0 {
			t.Errorf("collector %s has no metrics", g.Name)
		}
		for _, d := range g.Metrics {
			if err := d.Check(); err != nil {
				t.Error(err)
			}
			if names[d.Name] {
				t.Errorf("%s is declared twice", d.Name)
			}
			names[d.Name] = true
		}
	}
	// A name that is another's without _total would be the same family in OpenMetrics.
	for name := range names {
		if base, ok := strings.CutSuffix(name, "_total"); ok && names[base] {
			t.Errorf("%s and %s are one family in OpenMetrics", base, name)
		}
	}
}

// TestCollectorsHaveTables holds what the engine relies on: something to run, and names that it uses for itself left free.
func TestCollectorsHaveTables(t *testing.T) {
	for _, c := range All() {
		if c.Netns == nil && c.Node == nil && c.Join == nil {
			t.Errorf("%s has nothing to run", c.Name)
		}
		if slices.Contains([]string{discovering, entering, "exporter"}, c.Name) {
			t.Errorf("%s is a name of the engine's own", c.Name)
		}
	}
}

// TestKernelSpelling: who knows the counter by nstat's name finds it by the help text.
func TestKernelSpelling(t *testing.T) {
	word := func(text, name string) bool {
		return slices.Contains(strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" ().,", r) }), name)
	}
	kernel := map[*metric.Def]string{tcpCurrEstab: "CurrEstab", tcpMemoryPressure: "TCPMemoryPressuresChrono"}
	for _, c := range tcpCounters {
		kernel[c.def] = c.kernel
	}
	seen := map[string]bool{}
	for _, d := range newTCP().Metrics {
		name := kernel[d]
		if name == "" || seen[name] {
			t.Errorf("%s stands for %q, which is nothing or twice there", d.Name, name)
		}
		seen[name] = true
		if !word(d.Help, name) || !word(d.Source, name) {
			t.Errorf("%s: help %q and source %q lack the kernel's name %s", d.Name, d.Help, d.Source, name)
		}
	}
}

// TestPromlint has Prometheus's own linter look at an exposition that holds every metric. There are no exceptions.
func TestPromlint(t *testing.T) {
	var tables [][]*metric.Def
	for _, g := range Groups() {
		tables = append(tables, g.Metrics)
	}
	schema, err := metric.NewSchema(tables...)
	if err != nil {
		t.Fatal(err)
	}
	snap, batch := metric.NewSnapshot(schema), metric.NewBatch(schema)
	for i, table := range tables {
		sink := batch.Sink(i, "host", len(table))
		for _, d := range table {
			labels := slices.Repeat([]string{"x"}, len(d.Labels))
			if len(labels) > 0 && d.Labels[0] == metric.NetnsLabel {
				labels = labels[1:]
			}
			sink.Emit(d, 1, labels...)
		}
		if err := sink.Err(); err != nil {
			t.Fatal(err)
		}
	}
	snap.Add(batch)
	problems, err := promlint.New(bytes.NewReader(snap.AppendText(nil))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestSelect(t *testing.T) {
	all := All()
	got, err := Select(all, []string{"softnet", "tcp", "softnet"})
	if err != nil || len(got) != 2 || got[0] != all[0] || got[1].Name != "softnet" {
		t.Errorf("selected %v, %v", got, err)
	}
	if got, err := Select(all, []string{"tcp", "nosuch", "other"}); err == nil || !strings.HasSuffix(err.Error(), "nosuch, other") {
		t.Errorf("selected %v, %v", got, err)
	}
	if len(All()) != len(all) {
		t.Error("selecting changed the list")
	}
}
