package netns

import (
	"strings"
	"testing"
	"unicode/utf8"
)

const netDevHeader = "Inter-|   Receive                                                |  Transmit\n" +
	" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n"

func TestParseNetDev(t *testing.T) {
	const counters = " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n"
	links, capped, err := parseNetDev([]byte(netDevHeader+"    lo:"+counters+"veth@if2:"+counters+
		"  a\xff:"+counters+"  a\xfe:"+counters+" \u00a0x:"+counters), 0)
	if err != nil || capped {
		t.Fatalf("capped %v, error %v", capped, err)
	}
	want := map[int]uint64{
		ReceiveBytes: 1, ReceivePackets: 2, ReceiveErrors: 3, ReceiveDropped: 4,
		TransmitBytes: 9, TransmitPackets: 10, TransmitErrors: 11, TransmitDropped: 12,
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Name)
		for i, v := range l.Counters {
			if v != want[i] || i < l.Counted && want[i] == 0 {
				t.Errorf("%s: counter %d is %d, want %d", l.Name, i, v, want[i])
			}
		}
	}
	if got := strings.Join(names, "|"); got != "lo|veth@if2|a\uFFFD:5|a\uFFFD:6|\u00a0x" {
		t.Errorf("devices %q", got)
	}
	if links, capped, err := parseNetDev([]byte(netDevHeader+"a:"+counters+"b:"+counters), 1); err != nil || !capped || len(links) != 1 {
		t.Errorf("with a limit: %d devices, capped %v, error %v", len(links), capped, err)
	}
	if links, capped, err := parseNetDev([]byte(netDevHeader+"a:"+counters), 1); err != nil || capped || len(links) != 1 {
		t.Errorf("at the limit: %d devices, capped %v, error %v", len(links), capped, err)
	}
}

func TestParseNetDevRefuses(t *testing.T) {
	for name, line := range map[string]string{
		"short":     "lo: 1 2 3\n",
		"long":      "lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n",
		"no colon":  "lo 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n",
		"no number": "lo: x 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n",
		"negative":  "lo: -1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n",
		"cut":       "lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\neth0: 1 2",
	} {
		if links, _, err := parseNetDev([]byte(netDevHeader+line), 0); err == nil {
			t.Errorf("%s: %+v", name, links)
		}
	}
}

func FuzzParseNetDev(f *testing.F) {
	f.Add([]byte(netDevHeader+"    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n"), 0)
	f.Add([]byte(netDevHeader+"a\xff:1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 18446744073709551615\nb: 1\n"), 1)
	f.Add([]byte("\n\n:\n"), 2)
	f.Fuzz(func(t *testing.T, b []byte, limit int) {
		links, capped, err := parseNetDev(b, limit)
		if capped && (err != nil || len(links) != limit) {
			t.Errorf("capped at %d of %d, error %v", len(links), limit, err)
		}
		for _, l := range links {
			if !utf8.ValidString(l.Name) {
				t.Errorf("device %q", l.Name)
			}
		}
	})
}
