package metric

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/testing/protocmp"
)

// The metrics of the renderers' tests: each type, with no label, the sink's label only, and labels of its own.
var (
	renderPlain   = &Def{Name: "veth_plain", Help: `A "quoted" help with a \ in it.`}
	renderTotal   = &Def{Name: "veth_bytes_total", Type: Counter, Labels: []string{NetnsLabel, "device"}, Help: "Bytes."}
	renderNetns   = &Def{Name: "veth_state", Labels: []string{NetnsLabel}, Help: "State (TcpExt State)."}
	renderCPU     = &Def{Name: "veth_cpu_total", Type: Counter, Labels: []string{"cpu", "kind", "note"}, Help: "By CPU."}
	renderMetrics = []*Def{renderPlain, renderTotal, renderNetns, renderCPU}
)

// oddStrings are what label values have in them that a format must escape, or that is no UTF-8.
var oddStrings = []string{`"`, `\`, "\n", "\r", "\t", "\x00", `\n`, `\"`, "=", ",", "{", "}", " ", "#", "ü", "日本", "\xff",
	"\xc3\x28", "\xed\xa0\x80", "\uFFFD", "\u2028", "a", "eth0", "veth1@if2", ""}

// oddFloats are values whose spelling differs between writers of numbers.
var oddFloats = []float64{0, math.Copysign(0, -1), 1, -1, 0.5, -2.75, 1e6, 123456789, 1e15, 1e21, 1e300, -1e300, 1e-7,
	math.MaxFloat64, math.SmallestNonzeroFloat64, 1 << 53, 1<<53 + 2, -(1 << 53), 1<<53 - 1, 1 << 63, 1 << 64,
	float64(math.MaxUint64), math.Inf(1), math.Inf(-1), math.NaN(), 1.0 / 3}

// fill returns a snapshot of n random samples of each metric with labels, no two of one series.
func fill(t *testing.T, rng *rand.Rand, n int) *Snapshot {
	t.Helper()
	schema := newSchema(t, renderMetrics)
	b, snap := NewBatch(schema), NewSnapshot(schema)
	odd := func(serial int) string {
		var s strings.Builder
		for range rng.IntN(5) {
			s.WriteString(oddStrings[rng.IntN(len(oddStrings))])
		}
		return s.String() + strconv.Itoa(serial)
	}
	value := func() float64 {
		if rng.IntN(2) == 0 {
			return oddFloats[rng.IntN(len(oddFloats))]
		}
		return math.Ldexp(rng.Float64()-0.5, rng.IntN(120)-60)
	}
	emit := func(netns string, def *Def, labels ...string) {
		sink := b.Sink(0, netns, 1)
		sink.Emit(def, value(), labels...)
		if err := sink.Err(); err != nil {
			t.Fatal(err)
		}
	}
	emit("", renderPlain)
	for i := range n {
		netns := strings.ToValidUTF8(odd(i), "?") // as every Namespace.Name is
		emit(netns, renderNetns)
		emit(netns, renderTotal, odd(i))
		emit("", renderCPU, odd(i), odd(i), "")
	}
	snap.Add(b)
	return snap
}

func newSchema(t *testing.T, tables ...[]*Def) *Schema {
	t.Helper()
	schema, err := NewSchema(tables...)
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// encode is the reference: what client_golang's encoder makes of the snapshot's protocol buffers.
func encode(t *testing.T, snap *Snapshot, format expfmt.Format) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := expfmt.NewEncoder(&b, format)
	for _, family := range snap.Families() {
		if err := enc.Encode(family); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func parseText(t *testing.T, text []byte) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return families
}

// sameFloats also holds NaN equal to itself.
var sameFloats = cmp.Options{protocmp.Transform(), cmp.Comparer(func(a, b float64) bool {
	return a == b || math.IsNaN(a) && math.IsNaN(b)
})}

func TestTextMeansTheSameAsTheReference(t *testing.T) {
	for seed := range uint64(12) {
		snap := fill(t, rand.New(rand.NewPCG(seed, 1)), 20)
		got := snap.AppendText(nil)
		want := encode(t, snap, expfmt.NewFormat(expfmt.TypeTextPlain))
		parsed := parseText(t, got)
		if diff := cmp.Diff(parseText(t, want), parsed, sameFloats); diff != "" {
			t.Fatalf("seed %d: (-reference +ours)\n%s", seed, diff)
		}
		// Both could agree on nonsense: the parsed text must also be what went in.
		for _, family := range snap.Families() {
			if diff := cmp.Diff(family, parsed[family.GetName()], sameFloats); diff != "" {
				t.Fatalf("seed %d: (-emitted +parsed)\n%s", seed, diff)
			}
		}
	}
}

// TestOpenMetricsIsTheReference compares line by line. The number at a line's end is compared as a number, as the reference
// writes 1.0 where we write 1; both are allowed.
func TestOpenMetricsIsTheReference(t *testing.T) {
	for seed := range uint64(12) {
		snap := fill(t, rand.New(rand.NewPCG(seed, 2)), 20)
		want := encode(t, snap, expfmt.NewFormat(expfmt.TypeOpenMetrics))
		got := snap.AppendOpenMetrics(nil)
		if diff := cmp.Diff(normalLines(t, want), normalLines(t, got)); diff != "" {
			t.Fatalf("seed %d: (-reference +ours)\n%s", seed, diff)
		}
	}
}

func normalLines(t *testing.T, text []byte) []string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if at := strings.LastIndexByte(line, ' '); !strings.HasPrefix(line, "#") {
			value, err := strconv.ParseFloat(line[at+1:], 64)
			if err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
			line = fmt.Sprint(line[:at], " ", value+0) // + 0 takes the sign of a negative zero, which the reference drops
		}
		lines = append(lines, line)
	}
	return lines
}

// TestProtobufRoundTrip holds that the protocol buffers are whole: required fields are there, and survive the wire.
func TestProtobufRoundTrip(t *testing.T) {
	for seed := range uint64(6) {
		snap := fill(t, rand.New(rand.NewPCG(seed, 3)), 20)
		format := expfmt.NewFormat(expfmt.TypeProtoDelim)
		dec := expfmt.NewDecoder(bytes.NewReader(encode(t, snap, format)), format)
		series := 0
		for _, want := range snap.Families() {
			var got dto.MetricFamily
			if err := dec.Decode(&got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, &got, sameFloats); diff != "" {
				t.Fatalf("seed %d: (-sent +received)\n%s", seed, diff)
			}
			series += len(got.Metric)
		}
		if series != snap.Series() {
			t.Errorf("seed %d: %d series, the snapshot says %d", seed, series, snap.Series())
		}
	}
}

func TestFamiliesAreSortedAndNeverEmpty(t *testing.T) {
	schema := newSchema(t, renderMetrics)
	b, snap := NewBatch(schema), NewSnapshot(schema)
	for _, text := range [][]byte{snap.AppendText(nil), snap.AppendOpenMetrics(nil)} {
		if len(text) != 0 {
			t.Errorf("an empty snapshot renders as %q", text)
		}
	}
	sink := b.Sink(0, "host", 9)
	sink.Emit(renderNetns, 1)
	sink.Emit(renderPlain, 2)
	sink.Emit(renderTotal, 3, "eth0")
	snap.Add(b)
	var names []string
	for _, f := range snap.Families() {
		names = append(names, f.GetName())
	}
	if want := []string{"veth_bytes_total", "veth_plain", "veth_state"}; !slices.Equal(names, want) {
		t.Errorf("families %v, want %v", names, want)
	}
	const want = `# HELP veth_bytes_total Bytes.
# TYPE veth_bytes_total counter
veth_bytes_total{netns="host",device="eth0"} 3
# HELP veth_plain A "quoted" help with a \\ in it.
# TYPE veth_plain gauge
veth_plain 2
# HELP veth_state State (TcpExt State).
# TYPE veth_state gauge
veth_state{netns="host"} 1
`
	if diff := cmp.Diff(want, string(snap.AppendText(nil))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestNumbersAreExact(t *testing.T) {
	for _, tt := range []struct {
		value float64
		want  string
	}{
		{0, "0"}, {math.Copysign(0, -1), "0"}, {-3, "-3"}, {0.25, "0.25"}, {1 << 53, "9.007199254740992e+15"},
		{1<<53 - 1, "9007199254740991"}, {1<<53 + 2, "9.007199254740994e+15"}, {math.Inf(1), "+Inf"}, {math.Inf(-1), "-Inf"},
		{math.NaN(), "NaN"}, {1e300, "1e+300"},
	} {
		if got := string(appendFloat(nil, tt.value)); got != tt.want {
			t.Errorf("%g is written as %s, want %s", tt.value, got, tt.want)
		}
	}
}
