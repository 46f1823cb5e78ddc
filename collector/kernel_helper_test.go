package collector

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

// world is a scraper of this machine and of namespaces that a test made.
type world struct {
	t       testing.TB
	scraper *Scraper
}

func newWorld(t testing.TB, collectors []*Collector, namespaces ...*nettest.NS) *world {
	t.Helper()
	nettest.Root(t)
	d := &netns.Discovery{Proc: "/proc"}
	for _, ns := range namespaces {
		d.Named = append(d.Named, filepath.Dir(ns.Path))
	}
	s, err := NewScraper(Options{
		Collectors: collectors, Discovery: d, Visitor: netns.VisitorOptions{Proc: "/proc", Sys: "/sys"},
		Concurrent: 2, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return &world{t: t, scraper: s}
}

// samples are the series of one scrape, each under its line of the text format without the value.
type samples map[string]float64

// scrape scrapes once, and fails the test if a collector did.
func (w *world) scrape() samples {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	snap, err := w.scraper.Scrape(ctx, w.scraper.Collectors())
	if err != nil {
		w.t.Fatal(err)
	}
	defer w.scraper.Release(snap)
	got := samples{}
	for line := range strings.Lines(string(snap.AppendText(nil))) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		if err != nil {
			w.t.Fatal(err)
		}
		if _, ok := got[line[:at]]; ok {
			w.t.Errorf("series %s is there twice", line[:at])
		}
		got[line[:at]] = value
	}
	for series, value := range got {
		if strings.HasPrefix(series, "veth_scrape_errors_total") && value > 0 {
			w.t.Errorf("%s = %v", series, value)
		}
	}
	return got
}

// name returns the value of the label netns for ns.
func (s samples) name(t testing.TB, ns *nettest.NS) string {
	t.Helper()
	for series := range s {
		if strings.HasPrefix(series, "veth_netns_info{") && strings.Contains(series, fmt.Sprintf("inode=%q", strconv.FormatUint(ns.Ino, 10))) {
			name, _, _ := strings.Cut(strings.TrimPrefix(series, `veth_netns_info{netns="`), `"`)
			return name
		}
	}
	t.Fatalf("no namespace of inode %d", ns.Ino)
	return ""
}

// value returns a series, which must be there. The format's verbs stand for the labels' values.
func (s samples) value(t testing.TB, format string, args ...any) float64 {
	t.Helper()
	series := fmt.Sprintf(format, args...)
	v, ok := s[series]
	if !ok {
		t.Fatalf("no series %s", series)
	}
	return v
}

// absent fails the test if a series starts so.
func (s samples) absent(t testing.TB, format string, args ...any) {
	t.Helper()
	prefix := fmt.Sprintf(format, args...)
	for series := range s {
		if strings.HasPrefix(series, prefix) {
			t.Errorf("unexpected series %s", series)
		}
	}
}
