package collector

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vethexporter/vethexporter/internal/metric"
)

// testTable wants a few values by name.
func testTable() *netTable {
	t := newNetTable()
	for _, want := range [][2]string{{"Tcp", "CurrEstab"}, {"Tcp", "MaxConn"}, {"TcpExt", "TCPOFOQueue"}, {"TcpExt", "ListenDrops"}, {"MPTcpExt", "OFOQueue"}} {
		t.want(want[0], want[1], &metric.Def{Name: want[0] + " " + want[1]})
	}
	return t
}

// readAll returns what t reads of a text, by the names of testTable.
func readAll(t *netTable, text string) (map[string]int64, error) {
	got := map[string]int64{}
	err := t.read([]byte(text), func(d *metric.Def, v int64) { got[d.Name] = v })
	return got, err
}

func TestNetTable(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       map[string]int64
	}{
		{"empty", "", map[string]int64{}},
		{"netstat", "TcpExt: SyncookiesSent TCPOFOQueue ListenDrops\nTcpExt: 1 7864 3\nIpExt: InNoRoutes\nIpExt: 5\n",
			map[string]int64{"TcpExt TCPOFOQueue": 7864, "TcpExt ListenDrops": 3}},
		{"an older kernel's", "TcpExt: SyncookiesSent ListenDrops\nTcpExt: 1 3\n", map[string]int64{"TcpExt ListenDrops": 3}},
		{"none that is wanted", "TcpExt: SyncookiesSent\nTcpExt: 1\n", map[string]int64{}},
		// Three tables end in the same letters, and have names in common.
		{"MPTCP", "TcpExt: OFOQueue TCPOFOQueue\nTcpExt: 1 2\nMPTcpExt: TCPOFOQueue OFOQueue\nMPTcpExt: 3 4\n",
			map[string]int64{"TcpExt TCPOFOQueue": 2, "MPTcpExt OFOQueue": 4}},
		// The names of IcmpMsg differ between namespaces, and it is missing where nothing was received.
		{"IcmpMsg", "IcmpMsg: InType3 OutType8\nIcmpMsg: 1 2\nTcp: RtoMin CurrEstab\nTcp: 200 17\n", map[string]int64{"Tcp CurrEstab": 17}},
		{"signed", "Tcp: MaxConn CurrEstab\nTcp: -1 0\n", map[string]int64{"Tcp MaxConn": -1, "Tcp CurrEstab": 0}},
		{"largest", fmt.Sprintf("Tcp: MaxConn\nTcp: %d\n", math.MaxInt64), map[string]int64{"Tcp MaxConn": math.MaxInt64}},
		// CPUs are added up while they count on: one that is behind makes the sum wrap around for a moment.
		{"below zero for a moment", "Tcp: CurrEstab\nTcp: 18446744073709551615\n", map[string]int64{"Tcp CurrEstab": -1}},
		{"spaces", "Tcp:  RtoMin  CurrEstab \nTcp:  200  17 \n", map[string]int64{"Tcp CurrEstab": 17}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			table := testTable()
			for range 2 { // the second time with the layout kept
				got, err := readAll(table, tt.text)
				if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
					t.Errorf("error %v (-want +got)\n%s", err, diff)
				}
			}
		})
	}
}

func TestNetTableRefuses(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"names only":         {"TcpExt: TCPOFOQueue\n", "without its line of values"},
		"no line end":        {"TcpExt: TCPOFOQueue\nTcpExt: 1", "without its line of values"},
		"no colon":           {"TcpExt TCPOFOQueue\nTcpExt 1\n", "without its line of values"},
		"another's values":   {"TcpExt: TCPOFOQueue\nIpExt: 1\n", "without its line of values"},
		"values cut to none": {"TcpExt: TCPOFOQueue\nTcpExt\n", "without its line of values"},
		"a value less":       {"TcpExt: TCPOFOQueue ListenDrops\nTcpExt: 1\n", "1 values for 2 names"},
		"a value more":       {"TcpExt: TCPOFOQueue\nTcpExt: 1 2\n", "more values than the 1 names"},
		"no values":          {"TcpExt: TCPOFOQueue\nTcpExt:\n", "0 values for 1 names"},
		"word":               {"TcpExt: TCPOFOQueue\nTcpExt: many\n", "value 1 is not a number"},
		"fraction":           {"TcpExt: TCPOFOQueue\nTcpExt: 1.5\n", "value 1 is not a number"},
		"minus only":         {"TcpExt: TCPOFOQueue\nTcpExt: -\n", "value 1 is not a number"},
		"too many digits":    {"TcpExt: TCPOFOQueue\nTcpExt: 111111111111111111111\n", "value 1 is not a number"},
		"binary":             {"TcpExt: TCPOFOQueue\nTcpExt: \x00\xff\n", "value 1 is not a number"},
		"later table broken": {"Tcp: CurrEstab\nTcp: 1\nTcpExt: TCPOFOQueue\nTcpExt: x\n", "TcpExt: value 1"},
	} {
		if got, err := readAll(testTable(), tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, error %v, want %q", name, got, err, tt.want)
		}
	}
}

// TestNetTableFollowsTheHeader: a kept layout is used for the names that it was made of only. A kernel that is patched while
// it runs, or a namespace that differs, must not shift one counter into another.
func TestNetTableFollowsTheHeader(t *testing.T) {
	table := testTable()
	for i, text := range []string{
		"TcpExt: TCPOFOQueue ListenDrops\nTcpExt: 1 2\n",
		"TcpExt: ListenDrops TCPOFOQueue\nTcpExt: 2 1\n",
		"TcpExt: New TCPOFOQueue ListenDrops\nTcpExt: 9 1 2\n",
		"TcpExt: TCPOFOQueue ListenDrops\nTcpExt: 1 2\n",
	} {
		got, err := readAll(table, text)
		if diff := cmp.Diff(map[string]int64{"TcpExt TCPOFOQueue": 1, "TcpExt ListenDrops": 2}, got); err != nil || diff != "" {
			t.Errorf("text %d: error %v (-want +got)\n%s", i, err, diff)
		}
	}
}

// TestNetTableCostsNothing: with the layout known, reading allocates nothing. This is what most of a scrape's time goes to.
func TestNetTableCostsNothing(t *testing.T) {
	table, text := testTable(), []byte("TcpExt: SyncookiesSent TCPOFOQueue ListenDrops\nTcpExt: 1 7864 3\nIpExt: InNoRoutes\nIpExt: 5\n")
	sum := int64(0)
	read := func() {
		if err := table.read(text, func(_ *metric.Def, v int64) { sum += v }); err != nil {
			t.Fatal(err)
		}
	}
	read()
	if allocs := testing.AllocsPerRun(10, read); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func FuzzNetTable(f *testing.F) {
	f.Add([]byte("TcpExt: SyncookiesSent TCPOFOQueue ListenDrops\nTcpExt: 1 7864 3\nIpExt: InNoRoutes\nIpExt: 5\n"))
	f.Add([]byte("IcmpMsg: InType3\nIcmpMsg: 1\nTcp: MaxConn CurrEstab\nTcp: -1 0\n"))
	f.Add([]byte("MPTcpExt: OFOQueue\nMPTcpExt: 18446744073709551615\n"))
	f.Add([]byte("TcpExt: TCPOFOQueue ListenDrops\nTcpExt: 1\n"))
	f.Add([]byte("Tcp:\nTcp:\n:\n:\n"))
	warm := testTable()
	f.Fuzz(func(t *testing.T, b []byte) {
		fresh, freshErr := readAll(testTable(), string(b))
		kept, keptErr := readAll(warm, string(b))
		if fmt.Sprint(freshErr) != fmt.Sprint(keptErr) || cmp.Diff(fresh, kept) != "" {
			t.Errorf("with other layouts kept: %v, %v; without: %v, %v", kept, keptErr, fresh, freshErr)
		}
		if freshErr == nil && len(b) > 0 && b[len(b)-1] != '\n' {
			t.Error("a text that is cut off was taken for whole")
		}
	})
}
