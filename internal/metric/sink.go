package metric

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// ErrCapped says that a namespace has more series than the limit allows. What was emitted before stays valid.
var ErrCapped = errors.New("series limit reached")

// sample is one series of a scrape. Its label values start at labels in the arena of the Batch or Snapshot that holds it.
type sample struct {
	def    int32
	labels uint32
	value  float64
}

// Schema is a fixed list of metrics, sorted by name, with the place of each in it and the table that it comes from.
type Schema struct {
	defs  []*Def
	place map[*Def]place
}

type place struct {
	id, table int32
}

// NewSchema returns the schema of all metrics of the tables. It refuses two metrics of one name.
func NewSchema(tables ...[]*Def) (*Schema, error) {
	s := &Schema{defs: slices.Concat(tables...), place: map[*Def]place{}}
	slices.SortFunc(s.defs, func(a, b *Def) int { return strings.Compare(a.Name, b.Name) })
	for i, d := range s.defs {
		if i > 0 && s.defs[i-1].Name == d.Name {
			return nil, fmt.Errorf("metric %s is declared twice", d.Name)
		}
		s.place[d] = place{id: int32(i)}
	}
	for t, table := range tables {
		for _, d := range table {
			s.place[d] = place{id: s.place[d].id, table: int32(t)}
		}
	}
	return s, nil
}

// Batch is a growing list of samples that belongs to one goroutine.
type Batch struct {
	schema  *Schema
	samples []sample
	labels  []string
}

// NewBatch returns an empty batch for the metrics of schema.
func NewBatch(schema *Schema) *Batch { return &Batch{schema: schema} }

// Reset empties b and keeps its memory.
func (b *Batch) Reset() {
	clear(b.labels)
	b.samples, b.labels = b.samples[:0], b.labels[:0]
}

// Len returns how many samples b holds.
func (b *Batch) Len() int { return len(b.samples) }

// Sink is what one run of a collector in one namespace writes to. The zero value is not usable: see Batch.Sink.
type Sink struct {
	batch *Batch
	table int32
	netns string
	left  int
	err   error
	start [2]int
}

// Sink starts a run that may emit the metrics of one table, by its number in the schema. Metrics whose first label is netns
// get the value netns there; limit is how many series the run may add.
func (b *Batch) Sink(table int, netns string, limit int) Sink {
	return Sink{batch: b, table: int32(table), netns: netns, left: limit, start: [2]int{len(b.samples), len(b.labels)}}
}

// Emit adds one sample. The labels are the values of def.Labels in their order, without that of a leading netns. A metric
// from outside the collector's table, or a wrong number of labels, is a mistake in the collector: it fails the run.
func (s *Sink) Emit(def *Def, value float64, labels ...string) {
	if s.err != nil {
		return
	}
	b := s.batch
	at, ok := b.schema.place[def]
	if !ok || at.table != s.table {
		s.err = fmt.Errorf("metric %s is not in the collector's table", def.Name)
		return
	}
	want := len(def.Labels)
	perNetns := want > 0 && def.Labels[0] == NetnsLabel
	if perNetns {
		want--
	}
	if len(labels) != want {
		s.err = fmt.Errorf("metric %s takes %d label values, got %d", def.Name, want, len(labels))
		return
	}
	if s.left == 0 {
		s.err = ErrCapped
		return
	}
	s.left--
	b.samples = append(b.samples, sample{def: at.id, labels: uint32(len(b.labels)), value: value})
	if perNetns {
		b.labels = append(b.labels, s.netns)
	}
	for _, l := range labels {
		if !utf8.ValidString(l) {
			l = strings.ToValidUTF8(l, "\uFFFD")
		}
		b.labels = append(b.labels, l)
	}
}

// For makes netns the value of the label netns from now on.
func (s *Sink) For(netns string) { s.netns = netns }

// Err returns why the run is not whole: ErrCapped, or a mistake in the collector.
func (s *Sink) Err() error { return s.err }

// Len returns how many samples the run has added.
func (s *Sink) Len() int { return len(s.batch.samples) - s.start[0] }

// Discard takes back everything that the run emitted.
func (s *Sink) Discard() {
	s.batch.samples = s.batch.samples[:s.start[0]]
	s.batch.labels = s.batch.labels[:s.start[1]]
}

// Snapshot is the result of one scrape: the samples of each metric together, as the exposition formats want them.
type Snapshot struct {
	schema   *Schema
	families [][]sample
	labels   []string
	series   int
}

// NewSnapshot returns an empty snapshot for the metrics of schema.
func NewSnapshot(schema *Schema) *Snapshot {
	return &Snapshot{schema: schema, families: make([][]sample, len(schema.defs))}
}

// Reset empties s and keeps its memory.
func (s *Snapshot) Reset() {
	clear(s.labels)
	s.labels, s.series = s.labels[:0], 0
	for i := range s.families {
		s.families[i] = s.families[i][:0]
	}
}

// Add copies the samples of b, which has the same schema.
func (s *Snapshot) Add(b *Batch) {
	base := uint32(len(s.labels))
	s.labels = append(s.labels, b.labels...)
	for _, x := range b.samples {
		x.labels += base
		s.families[x.def] = append(s.families[x.def], x)
	}
	s.series += len(b.samples)
}

// Series returns how many samples s holds.
func (s *Snapshot) Series() int { return s.series }

// values returns the label values of x.
func (s *Snapshot) values(d *Def, x sample) []string {
	return s.labels[x.labels : int(x.labels)+len(d.Labels)]
}
