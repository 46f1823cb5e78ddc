package metric

import (
	"math"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// AppendText appends s in the Prometheus text format, version 0.0.4.
func (s *Snapshot) AppendText(buf []byte) []byte {
	return s.append(buf, func(d *Def) string { return d.Name }, helpEscaper)
}

// AppendOpenMetrics appends s in the OpenMetrics text format, version 1.0.0, without the closing "# EOF".
func (s *Snapshot) AppendOpenMetrics(buf []byte) []byte {
	return s.append(buf, func(d *Def) string { return strings.TrimSuffix(d.Name, "_total") }, valueEscaper)
}

// The old format leaves quotes in help texts alone; OpenMetrics escapes them.
var (
	helpEscaper  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	valueEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// append writes all families. Both formats spell a sample alike; they differ in the name and escaping of the two header lines.
func (s *Snapshot) append(buf []byte, family func(*Def) string, help *strings.Replacer) []byte {
	for i, d := range s.schema.defs {
		if len(s.families[i]) == 0 {
			continue
		}
		name := family(d)
		buf = append(append(append(append(append(buf, "# HELP "...), name...), ' '), help.Replace(d.Help)...), '\n')
		buf = append(append(append(append(append(buf, "# TYPE "...), name...), ' '), d.Type.String()...), '\n')
		for _, x := range s.families[i] {
			buf = append(buf, d.Name...)
			sep := byte('{')
			for j, v := range s.values(d, x) {
				buf = append(append(append(buf, sep), d.Labels[j]...), `="`...)
				buf = append(appendValue(buf, v), '"')
				sep = ','
			}
			if sep == ',' {
				buf = append(buf, '}')
			}
			buf = append(appendFloat(append(buf, ' '), x.value), '\n')
		}
	}
	return buf
}

func appendValue(buf []byte, v string) []byte {
	if strings.IndexByte(v, '\\') < 0 && strings.IndexByte(v, '"') < 0 && strings.IndexByte(v, '\n') < 0 {
		return append(buf, v...)
	}
	return append(buf, valueEscaper.Replace(v)...)
}

// appendFloat writes whole numbers as such, which is both shorter and cheaper than the shortest decimal of a float.
func appendFloat(buf []byte, v float64) []byte {
	const exact = 1 << 53
	switch {
	case v > -exact && v < exact && v == math.Trunc(v):
		return strconv.AppendInt(buf, int64(v), 10)
	case math.IsInf(v, 1):
		return append(buf, "+Inf"...)
	default: // covers NaN and -Inf, which strconv spells as both formats do
		return strconv.AppendFloat(buf, v, 'g', -1, 64)
	}
}

// Families returns s as client_golang's protocol buffers, sorted by name: for the protobuf exposition, and as the reference
// for the text renderers.
func (s *Snapshot) Families() []*dto.MetricFamily {
	var families []*dto.MetricFamily
	for i, d := range s.schema.defs {
		if len(s.families[i]) == 0 {
			continue
		}
		kind := dto.MetricType_GAUGE
		if d.Type == Counter {
			kind = dto.MetricType_COUNTER
		}
		f := &dto.MetricFamily{Name: &d.Name, Help: &d.Help, Type: &kind}
		for _, x := range s.families[i] {
			m := &dto.Metric{}
			for j, v := range s.values(d, x) {
				m.Label = append(m.Label, &dto.LabelPair{Name: &d.Labels[j], Value: &v})
			}
			if d.Type == Counter {
				m.Counter = &dto.Counter{Value: &x.value}
			} else {
				m.Gauge = &dto.Gauge{Value: &x.value}
			}
			f.Metric = append(f.Metric, m)
		}
		families = append(families, f)
	}
	return families
}
