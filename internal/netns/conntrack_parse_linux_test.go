package netns

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	conntrackHeaderOld = "entries  searched found new invalid ignore delete delete_list insert insert_failed drop early_drop icmp_error  expect_new expect_create expect_delete search_restart\n"
	conntrackHeaderNew = "entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error  expect_new expect_create expect_delete search_restart\n"
	conntrackRow       = "000000ff  00000001 00000002 00000003 00000004 00000005 00000006 00000007 00000008 00000009 0000000a 0000000b 0000000c  0000000d 0000000e 0000000f 00000010\n"
)

func TestParseConntrack(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		entries    uint64
		want       map[int]uint64
	}{
		{"new kernel, two CPUs", conntrackHeaderNew + conntrackRow + conntrackRow, 255, map[int]uint64{
			ConntrackClashResolve: 2, ConntrackFound: 4, ConntrackInvalid: 8, ConntrackChainTooLong: 14, ConntrackInsert: 16,
			ConntrackInsertFailed: 18, ConntrackDrop: 20, ConntrackEarlyDrop: 22, ConntrackError: 24, ConntrackSearchRestart: 32,
		}},
		// "searched" and "delete_list" are other things than what took their places.
		{"old kernel", conntrackHeaderOld + conntrackRow, 255, map[int]uint64{
			ConntrackFound: 2, ConntrackInvalid: 4, ConntrackInsert: 8,
			ConntrackInsertFailed: 9, ConntrackDrop: 10, ConntrackEarlyDrop: 11, ConntrackError: 12, ConntrackSearchRestart: 16,
		}},
		{"a column more", "entries found novelty\n00000001 00000002 00000003\n", 1, map[int]uint64{ConntrackFound: 2}},
		{"largest", "entries drop\nffffffff ffffffff\nffffffff ffffffff\n", 0xffffffff, map[int]uint64{ConntrackDrop: 2 * 0xffffffff}},
		{"empty line", "entries drop\n00000001 00000002\n\n", 1, map[int]uint64{ConntrackDrop: 2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseConntrack([]byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			want := &Conntrack{Entries: tt.entries}
			for counter, value := range tt.want {
				want.add(counter, value)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestParseConntrackRefuses(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"empty":        {"", "no header"},
		"no line end":  {"entries drop", "no header"},
		"other header": {"cpu drop\n1 2\n", "no header"},
		"one column":   {"entries\n1\n", "no header"},
		"no CPU":       {conntrackHeaderNew, "no line for any CPU"},
		"short line":   {conntrackHeaderNew + "000000ff 00000001\n", "2 columns under a header of 17"},
		"long line":    {"entries drop\n1 2 3\n", "3 columns under a header of 2"},
		"truncated":    {conntrackHeaderNew + conntrackRow + conntrackRow[:50], "columns under a header"},
		"no number":    {"entries drop\n00000001 xyz\n", "column drop"},
		"signed":       {"entries drop\n00000001 -1\n", "column drop"},
		"too long":     {"entries drop\n00000001 11111111111111111\n", "column drop"},
	} {
		if got, err := parseConntrack([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %+v, error %v, want %q", name, got, err, tt.want)
		}
	}
}

func FuzzParseConntrack(f *testing.F) {
	for _, seed := range []string{conntrackHeaderOld + conntrackRow, conntrackHeaderNew + conntrackRow + conntrackRow, "entries a\n1 2\n", "\n", ""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		ct, err := parseConntrack(b)
		if (ct == nil) == (err == nil) {
			t.Fatalf("result %+v with error %v", ct, err)
		}
		if err != nil {
			return
		}
		for counter, has := range ct.Has {
			if !has && ct.Counters[counter] != 0 {
				t.Errorf("counter %d has a value but is not there", counter)
			}
		}
	})
}
