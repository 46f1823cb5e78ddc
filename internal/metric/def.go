// Package metric holds what every source of numbers shares: the declaration of a metric (Def), the buffer that collectors
// write to (Sink), and the renderers that turn one scrape (Snapshot) into a Prometheus exposition.
package metric

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Type is the Prometheus type of a metric.
type Type uint8

// The types that collectors emit. Histograms belong to client_golang.
const (
	Gauge Type = iota
	Counter
)

// String returns the type's name as the text formats spell it.
func (t Type) String() string {
	if t == Counter {
		return "counter"
	}
	return "gauge"
}

// MarshalText writes the type's name.
func (t Type) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// NetnsLabel is the label that names a network namespace. A Def whose first label it is gets its value from the Sink.
const NetnsLabel = "netns"

// Def declares one metric. Everything else that speaks of it (documentation, lint, rules, dashboards) is checked against
// this one value.
type Def struct {
	Name    string   `json:"name"`
	Type    Type     `json:"type"`
	Labels  []string `json:"labels"`
	Help    string   `json:"help"`    // what it counts, with the kernel's spelling
	Source  string   `json:"source"`  // kernel file or netlink attribute
	Meaning string   `json:"meaning"` // what a rise, or the value, tells an operator
}

var (
	nameRE  = regexp.MustCompile(`^veth(exporter)?(_[a-z0-9]+)+$`)
	labelRE = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
)

// Check reports every way in which d breaks the naming rules.
func (d *Def) Check() error {
	var errs []error
	complain := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{d.Name}, args...)...))
	}
	if !nameRE.MatchString(d.Name) {
		complain("name must be snake case with the prefix veth_ or vethexporter_")
	}
	if total := strings.HasSuffix(d.Name, "_total"); total != (d.Type == Counter) {
		complain("counters, and only they, end in _total")
	}
	for i, label := range d.Labels {
		if !labelRE.MatchString(label) {
			complain("label %q is not snake case", label)
		}
		if slices.Contains(d.Labels[:i], label) {
			complain("label %q is there twice", label)
		}
		if label == NetnsLabel && i > 0 {
			complain("the label netns must come first")
		}
	}
	for field, text := range map[string]string{"Help": d.Help, "Source": d.Source, "Meaning": d.Meaning} {
		if text == "" || strings.TrimSpace(text) != text || strings.ContainsAny(text, "\n|") {
			complain("%s must be one line of text without a bar", field)
		}
	}
	if !strings.HasSuffix(d.Help, ".") || !strings.HasSuffix(d.Meaning, ".") {
		complain("Help and Meaning must be sentences")
	}
	return errors.Join(errs...)
}
