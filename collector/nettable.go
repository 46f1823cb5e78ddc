package collector

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/vethexporter/vethexporter/internal/metric"
)

// netTable reads the tables of /proc/net/netstat and /proc/net/snmp: for each protocol one line of names and one of values.
// The lines of names are the same in every namespace, so where each wanted value stands is worked out once and kept.
type netTable struct {
	wanted  map[string]map[string]*metric.Def // protocol, kernel's name
	layouts map[string]*atomic.Pointer[netLayout]
}

// netLayout is where the wanted values stand under one line of names; nil where a value is not wanted.
type netLayout struct {
	names   []byte
	columns []*metric.Def
}

func newNetTable() *netTable {
	return &netTable{wanted: map[string]map[string]*metric.Def{}, layouts: map[string]*atomic.Pointer[netLayout]{}}
}

// want asks for one value.
func (t *netTable) want(protocol, name string, def *metric.Def) {
	if t.wanted[protocol] == nil {
		t.wanted[protocol] = map[string]*metric.Def{}
		t.layouts[protocol] = &atomic.Pointer[netLayout]{}
	}
	t.wanted[protocol][name] = def
}

// read calls each with every wanted value that the table has. Names that this kernel lacks are passed over.
func (t *netTable) read(b []byte, each func(def *metric.Def, value int64)) error {
	for len(b) > 0 {
		names, rest, ok := bytes.Cut(b, []byte("\n"))
		values, rest, ok2 := bytes.Cut(rest, []byte("\n"))
		protocol, names, ok3 := bytes.Cut(names, []byte(":"))
		if !ok || !ok2 || !ok3 || !bytes.HasPrefix(values, protocol) || len(values) <= len(protocol) {
			return errors.New("a line of names without its line of values")
		}
		b = rest
		kept, ok := t.layouts[string(protocol)]
		if !ok {
			continue
		}
		layout := kept.Load()
		if layout == nil || !bytes.Equal(layout.names, names) {
			layout = t.layout(string(protocol), names)
			kept.Store(layout)
		}
		if err := layout.read(values[len(protocol)+1:], each); err != nil {
			return fmt.Errorf("%s: %w", protocol, err)
		}
	}
	return nil
}

func (t *netTable) layout(protocol string, names []byte) *netLayout {
	l := &netLayout{names: bytes.Clone(names)}
	for name := range bytes.FieldsSeq(names) {
		l.columns = append(l.columns, t.wanted[protocol][string(name)])
	}
	return l
}

func (l *netLayout) read(values []byte, each func(*metric.Def, int64)) error {
	column := 0
	for i := 0; i < len(values); {
		if values[i] == ' ' {
			i++
			continue
		}
		if column == len(l.columns) {
			return fmt.Errorf("more values than the %d names", len(l.columns))
		}
		value, size := parseInt(values[i:])
		if i += size; size == 0 || i < len(values) && values[i] != ' ' {
			return fmt.Errorf("value %d is not a number", column+1)
		}
		if def := l.columns[column]; def != nil {
			each(def, value)
		}
		column++
	}
	if column != len(l.columns) {
		return fmt.Errorf("%d values for %d names", column, len(l.columns))
	}
	return nil
}

// parseInt reads the decimal number that b starts with, and returns how many bytes it takes, 0 if there is none. The kernel
// prints counters as unsigned and a few settings as signed. Above 1<<63 the top bit is lost, centuries from here.
func parseInt(b []byte) (value int64, size int) {
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		size = 1
	}
	start := size
	for size < len(b) && b[size] >= '0' && b[size] <= '9' {
		value = value*10 + int64(b[size]-'0')
		size++
	}
	if size == start || size-start > 20 {
		return 0, 0
	}
	if negative {
		value = -value
	}
	return value, size
}
