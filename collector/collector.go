// Package collector reads what the kernel knows of each network namespace. A collector is a value: its table of metrics, and
// functions that read a source and emit to a sink. The Scraper runs them.
package collector

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vethexporter/vethexporter/internal/metric"
	"github.com/vethexporter/vethexporter/internal/netns"
)

// Collector is one source of metrics. Its functions may be called from several threads at a time, for different views. What
// they emit counts only if they return nil. An error that wraps netns.ErrUnsupported says that this kernel lacks the source.
type Collector struct {
	Name    string
	Default bool
	Metrics []*metric.Def
	// Netns reads what each namespace has of its own; nil if it has nothing.
	Netns func(ctx context.Context, v *netns.View, sink *metric.Sink) error
	// Join tells what only several namespaces together show, from what was kept of each; nil if there is nothing.
	Join func(ctx context.Context, whole *Whole, sink *metric.Sink) error
	// Node reads what the node has once; nil if it has nothing.
	Node func(ctx context.Context, v *netns.View, sink *metric.Sink) error
}

// Whole is what a scrape kept of the namespaces that it entered.
type Whole struct {
	Seen     []*netns.Seen
	Complete bool // whether these are all that there are

	peers map[linkRef]linkRef // of every device that has one; nil until they are wanted
}

// All returns every collector, in the order in which they run.
func All() []*Collector {
	return []*Collector{
		newTCP(),
		newIP(),
		newDevice(),
		newConntrack(),
		newSoftnet(),
		newSoftirq(),
		newPair(),
		newQdisc(),
		newSteering(),
		newEthtool(),
		newOverlay(),
	}
}

// Select returns the collectors of all that names lists, in their order. It refuses a name that is not there.
func Select(all []*Collector, names []string) ([]*Collector, error) {
	var unknown []string
	for _, name := range names {
		if !slices.ContainsFunc(all, func(c *Collector) bool { return c.Name == name }) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("no such collector, or it is disabled: %s", strings.Join(unknown, ", "))
	}
	return slices.DeleteFunc(slices.Clone(all), func(c *Collector) bool { return !slices.Contains(names, c.Name) }), nil
}

// Groups returns the metric tables of all collectors and of the scraper itself, for documentation and checks.
func Groups() []metric.Group {
	groups := make([]metric.Group, 0, len(All())+1)
	for _, c := range All() {
		groups = append(groups, metric.Group{Name: c.Name, Default: c.Default, Metrics: c.Metrics})
	}
	return append(groups, metric.Group{Name: "exporter", Default: true, Metrics: scrapeMetrics})
}

// parseError marks an error as one of content, not of reading.
type parseError struct{ error }

func (e parseError) Unwrap() error { return e.error }

// isParse tells whether err says that the kernel's text was not understood.
func isParse(err error) bool {
	var p parseError
	return errors.As(err, &p) || errors.Is(err, netns.ErrParse)
}
