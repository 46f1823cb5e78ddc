package collector

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func softirqCounts(text string) (map[string]uint64, error) {
	got := map[string]uint64{}
	err := parseSoftirqs([]byte(text), func(cpu, kind string, count uint64) { got[cpu+" "+kind] = count })
	return got, err
}

func TestParseSoftirqs(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       map[string]uint64
	}{
		{"two CPUs", "                    CPU0       CPU1       \n          HI:          0          1\n      NET_RX:     265486     279985\n",
			map[string]uint64{"0 HI": 0, "1 HI": 1, "0 NET_RX": 265486, "1 NET_RX": 279985}},
		{"numbered with gaps", "  CPU1 CPU3 CPU127\nNET_RX: 10 30 1270\n", map[string]uint64{"1 NET_RX": 10, "3 NET_RX": 30, "127 NET_RX": 1270}},
		{"a kind of some later kernel", "CPU0\nNOVELTY: 1\nNET_TX: 2\n", map[string]uint64{"0 NOVELTY": 1, "0 NET_TX": 2}},
		{"header only", "CPU0 CPU1\n", map[string]uint64{}},
		{"largest", "CPU0\nNET_RX: 18446744073709551615\n", map[string]uint64{"0 NET_RX": 1<<64 - 1}},
	} {
		got, err := softirqCounts(tt.text)
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("%s: error %v (-want +got)\n%s", tt.name, err, diff)
		}
	}
}

func TestParseSoftirqsRefuses(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"empty":         {"", "no header"},
		"no CPU":        {"\nNET_RX: 1\n", "no header"},
		"other header":  {"CPU0 CPUx\nNET_RX: 1 2\n", `header names "CPUx"`},
		"no header":     {"NET_RX: 1 2\n", `header names "NET_RX:"`},
		"a count less":  {"CPU0 CPU1\nNET_RX: 1\n", "NET_RX: 1 columns for 2 CPUs"},
		"a count more":  {"CPU0\nNET_RX: 1 2\n", "NET_RX: 2 columns for 1 CPUs"},
		"cut in a name": {"CPU0\nNET_RX: 1\nNET", "has no name"},
		"no number":     {"CPU0\nNET_RX: one\n", "NET_RX"},
		"negative":      {"CPU0\nNET_RX: -1\n", "NET_RX"},
		"too large":     {"CPU0\nNET_RX: 18446744073709551616\n", "NET_RX"},
	} {
		if got, err := softirqCounts(tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, error %v, want %q", name, got, err, tt.want)
		}
	}
}

func FuzzParseSoftirqs(f *testing.F) {
	f.Add([]byte("                    CPU0       CPU1       \n          HI:          0          1\n      NET_RX:     265486     279985\n"))
	f.Add([]byte("CPU1 CPU3\nNET_RX: 10 30\n"))
	f.Add([]byte("CPU0\nNET_RX: -1\n"))
	f.Add([]byte("\n:\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = parseSoftirqs(b, func(cpu, kind string, _ uint64) {
			if cpu == "" || strings.TrimLeft(cpu, "0123456789") != "" || strings.TrimSpace(kind) != kind {
				t.Errorf("CPU %q, kind %q", cpu, kind)
			}
		})
	})
}
