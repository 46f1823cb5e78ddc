package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// scrape is one exposition.
type scrape struct {
	body    []byte
	took    time.Duration
	samples map[string][]sample // by the metric's name
}

type sample struct {
	labels map[string]string
	value  float64
}

// parse reads the text format. It refuses what Prometheus would refuse: a series that is there twice, text that is no UTF-8.
func parse(body []byte) (*scrape, error) {
	if !utf8.Valid(body) {
		return nil, errors.New("exposition is not valid UTF-8")
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("exposition: %w", err)
	}
	s, err := collect(maps.Values(families))
	if err == nil {
		s.body = body
	}
	return s, err
}

// collect makes a scrape of metric families.
func collect(families func(func(*dto.MetricFamily) bool)) (*scrape, error) {
	s := &scrape{samples: map[string][]sample{}}
	seen := map[string]bool{}
	for f := range families {
		for _, m := range f.Metric {
			x := sample{labels: map[string]string{}}
			for _, l := range m.Label {
				x.labels[l.GetName()] = l.GetValue()
			}
			switch {
			case m.Counter != nil:
				x.value = m.Counter.GetValue()
			case m.Gauge != nil:
				x.value = m.Gauge.GetValue()
			case m.Summary != nil: // go_gc_duration_seconds
				x.value = float64(m.Summary.GetSampleCount())
			default:
				return nil, fmt.Errorf("%s is a %s", f.GetName(), f.GetType())
			}
			key := f.GetName() + fmt.Sprint(x.labels)
			if seen[key] {
				return nil, fmt.Errorf("%s is there twice", key)
			}
			seen[key] = true
			s.samples[f.GetName()] = append(s.samples[f.GetName()], x)
		}
	}
	return s, nil
}

// find returns the samples of a metric that have the labels, names and values in turn.
func (s *scrape) find(name string, labels ...string) []sample {
	var found []sample
	for _, x := range s.samples[name] {
		fits := true
		for pair := range slices.Chunk(labels, 2) {
			fits = fits && x.labels[pair[0]] == pair[1]
		}
		if fits {
			found = append(found, x)
		}
	}
	return found
}

// value returns the one sample that has the labels.
func (s *scrape) value(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	found := s.find(name, labels...)
	if len(found) != 1 {
		t.Fatalf("%d series of %s with %q, want 1", len(found), name, labels)
	}
	return found[0].value
}

// check fails the test unless a value is the one sample's that has the labels.
func (s *scrape) check(t testing.TB, want float64, name string, labels ...string) {
	t.Helper()
	if got := s.value(t, name, labels...); got != want {
		t.Errorf("%s with %q is %v, want %v", name, labels, got, want)
	}
}

// of returns the series of one namespace, by their name and other labels.
func (s *scrape) of(netns string) map[string]float64 {
	series := map[string]float64{}
	for name, samples := range s.samples {
		for _, x := range samples {
			if x.labels["netns"] == netns {
				series[name+fmt.Sprint(x.labels)] = x.value
			}
		}
	}
	return series
}

// faults returns what the scrape says that did not go well.
func (s *scrape) faults() (faults []string) {
	for _, x := range s.samples["veth_scrape_collector_success"] {
		if x.value != 1 {
			faults = append(faults, fmt.Sprintf("collector failed: %v", x.labels))
		}
	}
	for _, x := range s.samples["veth_scrape_errors_total"] {
		if x.value != 0 {
			faults = append(faults, fmt.Sprintf("%v errors: %v", x.value, x.labels))
		}
	}
	for _, name := range []string{"veth_scrape_collector_success", "veth_scrape_errors_total"} {
		if len(s.samples[name]) == 0 {
			faults = append(faults, "no "+name)
		}
	}
	return faults
}

// sources returns where each metric of a collector comes from, as the program itself prints it.
func sources(t testing.TB, collector string) map[string]string {
	t.Helper()
	out, err := exec.Command(binary(t), "metrics", "--format=json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var groups []struct {
		Name    string
		Metrics []struct{ Name, Source string }
	}
	if err := json.Unmarshal(out, &groups); err != nil {
		t.Fatal(err)
	}
	source := map[string]string{}
	for _, g := range groups {
		if g.Name == collector {
			for _, m := range g.Metrics {
				source[m.Name] = m.Source
			}
		}
	}
	if len(source) == 0 {
		t.Fatalf("no metrics of collector %s", collector)
	}
	return source
}
