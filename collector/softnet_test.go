package collector

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// softnetLine has so many columns, of which column i is i+1, and says that it is of a CPU if it is long enough.
func softnetLine(columns int, cpu string) string {
	all := strings.Fields("00000001 00000002 00000003 00000004 00000005 00000006 00000007 00000008 00000009 0000000a 0000000b 0000000c " +
		cpu + " 0000000e 0000000f 00000010")
	return strings.Join(all[:columns], " ") + "\n"
}

func TestParseSoftnet(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		cpus       []uint64
		columns    int
	}{
		{"9 columns", softnetLine(9, "") + softnetLine(9, ""), []uint64{0, 1}, 9},
		{"10 columns, Linux 3.0", softnetLine(10, "00000000"), []uint64{0}, 10},
		{"11 columns, Linux 3.11", softnetLine(11, "") + softnetLine(11, ""), []uint64{0, 1}, 11},
		{"13 columns, Linux 5.14", softnetLine(13, "00000000") + softnetLine(13, "00000001"), []uint64{0, 1}, 13},
		{"15 columns, Linux 6.6", softnetLine(15, "00000000") + softnetLine(15, "00000001"), []uint64{0, 1}, 15},
		{"16 columns, some later kernel", softnetLine(16, "00000000"), []uint64{0}, 16},
		{"CPUs 0 to 2 and 4 offline", softnetLine(15, "00000003") + softnetLine(15, "00000005") + softnetLine(15, "0000007f"), []uint64{3, 5, 127}, 15},
		{"no last line end", strings.TrimSuffix(softnetLine(15, "00000002"), "\n"), []uint64{2}, 15},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rows, err := parseSoftnet([]byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			var cpus []uint64
			for _, row := range rows {
				cpus = append(cpus, row.cpu)
				if len(row.columns) != tt.columns {
					t.Errorf("%d columns, want %d", len(row.columns), tt.columns)
				}
				for i, v := range row.columns {
					if i != softnetCPUColumn && v != uint64(i)+1 {
						t.Errorf("column %d is %d", i, v)
					}
				}
			}
			if diff := cmp.Diff(tt.cpus, cpus); diff != "" {
				t.Errorf("CPUs (-want +got)\n%s", diff)
			}
		})
	}
}

func TestParseSoftnetRefuses(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"empty":         {"", "no line for any CPU"},
		"empty line":    {"\n", "line 1: 0 columns"},
		"8 columns":     {softnetLine(8, ""), "line 1: 8 columns"},
		"truncated":     {softnetLine(15, "00000000") + softnetLine(15, "00000001")[:60], "line 2: 7 columns"},
		"no number":     {strings.Replace(softnetLine(15, "00000000"), "00000005", "0000zzzz", 1), "line 1"},
		"more than u32": {strings.Replace(softnetLine(15, "00000000"), "00000005", "100000000", 1), "line 1"},
		"negative":      {strings.Replace(softnetLine(15, "00000000"), "00000005", "-0000001", 1), "line 1"},
	} {
		if rows, err := parseSoftnet([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, error %v, want %q", name, rows, err, tt.want)
		}
	}
}

func FuzzParseSoftnet(f *testing.F) {
	for _, columns := range []int{8, 9, 11, 13, 15} {
		f.Add([]byte(softnetLine(columns, "00000001") + softnetLine(columns, "00000003")))
	}
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		rows, err := parseSoftnet(b)
		if (len(rows) == 0) != (err != nil) {
			t.Errorf("%d rows with error %v", len(rows), err)
		}
		for _, row := range rows {
			if len(row.columns) < 9 {
				t.Errorf("%d columns", len(row.columns))
			}
		}
	})
}
