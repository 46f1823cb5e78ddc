package metric

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var (
	sinkGauge   = &Def{Name: "veth_a", Labels: []string{NetnsLabel}}
	sinkDevice  = &Def{Name: "veth_b_total", Type: Counter, Labels: []string{NetnsLabel, "device"}}
	sinkNode    = &Def{Name: "veth_c", Labels: []string{"cpu"}}
	sinkForeign = &Def{Name: "veth_d"}
	sinkUnknown = &Def{Name: "veth_a", Labels: []string{NetnsLabel}} // like sinkGauge, but not it
)

// sinkSchema has two tables, as if of two collectors.
func sinkSchema(t testing.TB) *Schema {
	t.Helper()
	schema, err := NewSchema([]*Def{sinkGauge, sinkDevice, sinkNode}, []*Def{sinkForeign})
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// text renders what a batch holds.
func text(b *Batch) string {
	snap := NewSnapshot(b.schema)
	snap.Add(b)
	return string(snap.AppendText(nil))
}

func TestSinkRefusesMistakes(t *testing.T) {
	for _, tt := range []struct {
		name string
		emit func(*Sink)
		want string
	}{
		{"metric of another table", func(s *Sink) { s.Emit(sinkForeign, 1) }, "veth_d is not in the collector's table"},
		{"metric of no table", func(s *Sink) { s.Emit(sinkUnknown, 1) }, "veth_a is not in the collector's table"},
		{"label missing", func(s *Sink) { s.Emit(sinkDevice, 1) }, "veth_b_total takes 1 label values, got 0"},
		{"label too many", func(s *Sink) { s.Emit(sinkNode, 1, "0", "1") }, "veth_c takes 1 label values, got 2"},
		{"netns given", func(s *Sink) { s.Emit(sinkGauge, 1, "host") }, "veth_a takes 0 label values, got 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := NewBatch(sinkSchema(t))
			s := b.Sink(0, "host", 9)
			s.Emit(sinkGauge, 1)
			tt.emit(&s)
			err := s.Err()
			if err == nil || !strings.Contains(err.Error(), tt.want) || errors.Is(err, ErrCapped) {
				t.Fatalf("error %v, want %q", err, tt.want)
			}
			s.Emit(sinkNode, 1, "0") // what follows the first mistake changes nothing
			if !errors.Is(s.Err(), err) || s.Len() != 1 || b.Len() != 1 {
				t.Errorf("then: error %v, %d and %d samples", s.Err(), s.Len(), b.Len())
			}
		})
	}
}

func TestSinkGivesNetns(t *testing.T) {
	b := NewBatch(sinkSchema(t))
	for _, netns := range []string{"host", "container:web"} {
		s := b.Sink(0, netns, 9)
		s.Emit(sinkGauge, 1)
		s.Emit(sinkDevice, 2, "eth0")
	}
	s := b.Sink(0, "", 9)
	s.Emit(sinkNode, 3, "0")
	const want = `veth_a{netns="host"} 1
veth_a{netns="container:web"} 1
veth_b_total{netns="host",device="eth0"} 2
veth_b_total{netns="container:web",device="eth0"} 2
veth_c{cpu="0"} 3
`
	var got strings.Builder
	for line := range strings.Lines(text(b)) {
		if !strings.HasPrefix(line, "#") {
			got.WriteString(line)
		}
	}
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestSinkFor: one run may speak of several namespaces, and its mistakes and limit stay its own.
func TestSinkFor(t *testing.T) {
	b := NewBatch(sinkSchema(t))
	s := b.Sink(0, "host", 3)
	for _, netns := range []string{"a", "b"} {
		s.For(netns)
		s.Emit(sinkDevice, 1, "eth0")
	}
	got := text(b)
	for _, want := range []string{`{netns="a",device="eth0"} 1`, `{netns="b",device="eth0"} 1`} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %s:\n%s", want, got)
		}
	}
	if s.For("c"); s.Err() != nil || s.Len() != 2 {
		t.Errorf("error %v, %d samples", s.Err(), s.Len())
	}
}

// TestSinkCap holds that a run keeps what it emitted up to its limit, and that the limit is its own.
func TestSinkCap(t *testing.T) {
	b := NewBatch(sinkSchema(t))
	s := b.Sink(0, "host", 2)
	s.Emit(sinkGauge, 1)
	s.Emit(sinkDevice, 2, "eth0")
	if err := s.Err(); err != nil {
		t.Fatalf("within the limit: %v", err)
	}
	s.Emit(sinkNode, 3, "0")
	if !errors.Is(s.Err(), ErrCapped) || s.Len() != 2 {
		t.Errorf("beyond the limit: error %v, %d samples", s.Err(), s.Len())
	}
	next := b.Sink(0, "host", 1)
	next.Emit(sinkNode, 4, "1")
	if next.Err() != nil || next.Len() != 1 || b.Len() != 3 {
		t.Errorf("next run: error %v, %d of %d samples", next.Err(), next.Len(), b.Len())
	}
	none := b.Sink(0, "host", 0)
	none.Emit(sinkGauge, 5)
	if !errors.Is(none.Err(), ErrCapped) || b.Len() != 3 {
		t.Errorf("limit 0: error %v, %d samples", none.Err(), b.Len())
	}
}

// TestSinkDiscard holds that a failed run leaves no trace, neither of itself nor in what comes after it.
func TestSinkDiscard(t *testing.T) {
	b := NewBatch(sinkSchema(t))
	kept := b.Sink(0, "kept", 9)
	kept.Emit(sinkDevice, 1, "eth0")
	want := text(b)

	failed := b.Sink(0, "failed", 9)
	failed.Emit(sinkDevice, 2, "eth1")
	failed.Emit(sinkNode, 3, "7")
	failed.Discard()
	if diff := cmp.Diff(want, text(b)); diff != "" || failed.Len() != 0 {
		t.Errorf("%d samples left: (-want +got)\n%s", failed.Len(), diff)
	}
	after := b.Sink(0, "after", 9)
	after.Emit(sinkDevice, 4, "eth2")
	got := text(b)
	if strings.Contains(got, "failed") || !strings.Contains(got, `veth_b_total{netns="after",device="eth2"} 4`) {
		t.Errorf("after the failed run:\n%s", got)
	}
}

func TestSinkMakesLabelsValid(t *testing.T) {
	b := NewBatch(sinkSchema(t))
	s := b.Sink(0, "host", 9)
	s.Emit(sinkDevice, 1, "a\xffb\xed\xa0\x80")
	got := text(b)
	if !utf8.ValidString(got) || !strings.Contains(got, "device=\"a\uFFFDb\uFFFD\"") {
		t.Errorf("rendered as %q", got)
	}
}

func TestSchemaRefusesTwoOfOneName(t *testing.T) {
	if _, err := NewSchema([]*Def{sinkGauge}, []*Def{sinkUnknown}); err == nil || !strings.Contains(err.Error(), "veth_a") {
		t.Errorf("two metrics veth_a: %v", err)
	}
}

// TestEmitAllocatesNothing is what keeps thousands of namespaces cheap: the memory of the scrapes before is used again.
func TestEmitAllocatesNothing(t *testing.T) {
	schema := sinkSchema(t)
	b, snap := NewBatch(schema), NewSnapshot(schema)
	buf := make([]byte, 0, 1<<16)
	scrape := func() {
		b.Reset()
		snap.Reset()
		s := b.Sink(0, "container:web", 1000)
		for range 100 {
			s.Emit(sinkGauge, 1)
			s.Emit(sinkDevice, 2.5, "eth0")
			s.Emit(sinkNode, 3, "11")
		}
		snap.Add(b)
		buf = snap.AppendText(buf[:0])
	}
	scrape()
	if allocs := testing.AllocsPerRun(10, scrape); allocs != 0 {
		t.Errorf("%v allocations for 300 samples", allocs)
	}
}

// TestResetLeaksNothing holds that a snapshot that is used again shows, and keeps alive, nothing of the scrape before.
func TestResetLeaksNothing(t *testing.T) {
	schema := sinkSchema(t)
	snap := NewSnapshot(schema)
	add := func(netns string, n int) {
		b := NewBatch(schema)
		s := b.Sink(0, netns, n)
		for range n {
			s.Emit(sinkDevice, 1, netns+"-device")
		}
		snap.Add(b)
	}
	add("secret", 50)
	add("other", 50)
	snap.Reset()
	if snap.Series() != 0 || len(snap.Families()) != 0 || len(snap.AppendText(nil)) != 0 {
		t.Errorf("after the reset: %d series\n%s", snap.Series(), snap.AppendText(nil))
	}
	for i, l := range snap.labels[:cap(snap.labels)] {
		if l != "" {
			t.Fatalf("label value %d is still %q", i, l)
		}
	}
	add("new", 3)
	fresh := NewSnapshot(schema)
	b := NewBatch(schema)
	s := b.Sink(0, "new", 3)
	for range 3 {
		s.Emit(sinkDevice, 1, "new-device")
	}
	fresh.Add(b)
	if diff := cmp.Diff(string(fresh.AppendText(nil)), string(snap.AppendText(nil))); diff != "" || snap.Series() != 3 {
		t.Errorf("%d series (-fresh +reused)\n%s", snap.Series(), diff)
	}
}
