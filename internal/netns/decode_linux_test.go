package netns

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// attr makes one attribute with its padding.
func attr(typ uint16, payload ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(payload)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, payload...)
	return append(b, make([]byte, (4-len(b)%4)%4)...)
}

func word(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// ifInfo makes the fixed part of a link message.
func ifInfo(family byte, hardware uint16, index, flags uint32) []byte {
	b := []byte{family, 0}
	b = binary.NativeEndian.AppendUint16(b, hardware)
	return slices.Concat(b, word(index), word(flags), word(0))
}

// vethMessage is what the kernel tells of an end of a pair, as far as it is read.
func vethMessage() []byte {
	stats := make([]byte, 0, 8*linkCounters)
	for i := range uint64(linkCounters) {
		stats = binary.NativeEndian.AppendUint64(stats, i+100)
	}
	return slices.Concat(ifInfo(unix.AF_UNSPEC, unix.ARPHRD_ETHER, 7, unix.IFF_UP),
		attr(unix.IFLA_IFNAME, []byte("eth0\x00")...), attr(unix.IFLA_MTU, word(1450)...),
		attr(unix.IFLA_ADDRESS, 2, 0, 0, 0, 0, 1), attr(unix.IFLA_CARRIER, 1), attr(unix.IFLA_CARRIER_CHANGES, word(3)...),
		attr(unix.IFLA_MASTER, word(9)...), attr(unix.IFLA_LINK, word(11)...), attr(unix.IFLA_LINK_NETNSID, word(2)...),
		attr(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, attr(unix.IFLA_INFO_KIND, []byte("veth\x00")...)...),
		attr(unix.IFLA_STATS64, stats...))
}

func TestDecodeLink(t *testing.T) {
	want := Link{
		Index: 7, Name: "eth0", Kind: "veth", Address: "02:00:00:00:00:01", Up: true, Carrier: true, HasCarrier: true,
		MTU: 1450, Master: 9, Peer: 11, PeerNSID: 2, CarrierChanges: 3, Counted: linkCounters,
	}
	for i := range want.Counters {
		want.Counters[i] = uint64(i) + 100
	}
	got := Link{Name: "left over", Master: 99, Kind: "old"} // of the device that was decoded into it before
	if err := got.decode(vethMessage()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestDecodeKinds(t *testing.T) {
	name, mtu := attr(unix.IFLA_IFNAME, 'x', 0), attr(unix.IFLA_MTU, word(1500)...)
	for _, tt := range []struct {
		name     string
		hardware uint16
		info     []byte
		want     string
	}{
		{"loopback", unix.ARPHRD_LOOPBACK, nil, KindLoopback},
		{"hardware", unix.ARPHRD_ETHER, nil, KindPhysical},
		{"tunnel", unix.ARPHRD_NONE, attr(unix.IFLA_LINKINFO, attr(unix.IFLA_INFO_KIND, []byte("tun\x00")...)...), "tun"},
		{"not UTF-8", unix.ARPHRD_ETHER, attr(unix.IFLA_LINKINFO, attr(unix.IFLA_INFO_KIND, 0xff, 0)...), "\uFFFD"},
	} {
		var l Link
		if err := l.decode(slices.Concat(ifInfo(unix.AF_UNSPEC, tt.hardware, 1, 0), name, mtu, tt.info)); err != nil || l.Kind != tt.want {
			t.Errorf("%s: kind %q, error %v", tt.name, l.Kind, err)
		}
		if l.Up || l.HasCarrier || l.PeerNSID != -1 || l.Counted != 0 {
			t.Errorf("%s: %+v", tt.name, l)
		}
	}
}

// TestDecodeCounters: older kernels tell fewer counters, later ones may tell more.
func TestDecodeCounters(t *testing.T) {
	for _, tt := range []struct{ bytes, want int }{{0, 0}, {7, 0}, {8 * 23, 23}, {8 * 24, 24}, {8 * 25, 25}, {8*25 + 4, 25}, {8 * 40, linkCounters}} {
		var l Link
		l.count(bytes.Repeat([]byte{1}, tt.bytes))
		if l.Counted != tt.want {
			t.Errorf("%d bytes: %d counters, want %d", tt.bytes, l.Counted, tt.want)
		}
		for i, v := range l.Counters {
			if (v != 0) != (i < tt.want) {
				t.Errorf("%d bytes: counter %d is %x", tt.bytes, i, v)
			}
		}
	}
}

func TestDecodeLinkRefuses(t *testing.T) {
	good := vethMessage()
	for name, b := range map[string][]byte{
		"empty":         nil,
		"short":         good[:unix.SizeofIfInfomsg-1],
		"bridge port":   append([]byte{unix.AF_BRIDGE}, good[1:]...),
		"header only":   good[:unix.SizeofIfInfomsg],
		"no name":       append(ifInfo(0, 1, 1, 0), attr(unix.IFLA_MTU, word(1500)...)...),
		"no MTU":        append(ifInfo(0, 1, 1, 0), attr(unix.IFLA_IFNAME, 'x', 0)...), // as a wireless event
		"short MTU":     append(ifInfo(0, 1, 1, 0), attr(unix.IFLA_MTU, 1, 2)...),
		"cut attribute": good[:len(good)-1],
		"long carrier":  append(slices.Clone(good), attr(unix.IFLA_CARRIER, 1, 2)...),
	} {
		var l Link
		if err := l.decode(b); err == nil {
			t.Errorf("%s: decoded as %+v", name, l)
		}
	}
}

func TestDeviceName(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"eth0\x00", "eth0"}, {"eth0\x00\x00", "eth0"}, {"eth0", "eth0"}, {"\x00", ""}, {"", ""},
		{"veth1@x", "veth1@x"}, {"日本", "日本"}, {"a\xff", "a\uFFFD:5"}, {"a\xfe\x00", "a\uFFFD:5"}, {"a\xfe\xff", "a\uFFFD:5"},
	} {
		if got := deviceName([]byte(tt.in), 5); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.in, got, tt.want)
		}
	}
}

// message makes a netlink message with its padding.
func message(typ, flags uint16, seq uint32, data ...byte) []byte {
	b := word(uint32(unix.SizeofNlMsghdr + len(data)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = slices.Concat(b, word(seq), word(0), data)
	return append(b, make([]byte, (4-len(b)%4)%4)...)
}

func TestMessages(t *testing.T) {
	datagram := slices.Concat(message(16, 2, 1, 'a'), message(17, 0, 2, 'b', 'c', 'd', 'e', 'f'), message(3, 0, 3))
	var got []string
	walk := func(stop uint16) (bool, error) {
		got = nil
		return messages(datagram, func(h unix.NlMsghdr, data []byte) (bool, error) {
			got = append(got, string(data))
			return h.Type == stop, nil
		})
	}
	if end, err := walk(99); end || err != nil || !slices.Equal(got, []string{"a", "bcdef", ""}) {
		t.Errorf("all: %q, %v, %v", got, end, err)
	}
	if end, err := walk(17); !end || err != nil || len(got) != 2 {
		t.Errorf("to the second: %q, %v, %v", got, end, err)
	}
	errStop := errors.New("stop")
	if _, err := messages(datagram, func(unix.NlMsghdr, []byte) (bool, error) { return false, errStop }); !errors.Is(err, errStop) {
		t.Errorf("error of the function: %v", err)
	}
	for name, b := range map[string][]byte{
		"longer than the datagram": message(16, 0, 1, 'a')[:16],
		"shorter than its header":  append(word(15), make([]byte, 12)...),
		"length 0":                 make([]byte, 16),
		"huge":                     append(word(0xffffffff), make([]byte, 12)...),
	} {
		if _, err := messages(b, func(unix.NlMsghdr, []byte) (bool, error) { return false, nil }); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestAttribute(t *testing.T) {
	b := slices.Concat(attr(5, 'a'), attr(6|unix.NLA_F_NESTED, 'b', 'c', 'd', 'e', 'f'), attr(6, 'x'), attr(7))
	for typ, want := range map[uint16]string{5: "a", 6: "bcdef", 7: ""} {
		if got := attribute(b, typ); got == nil || string(got) != want {
			t.Errorf("attribute %d: %q, want %q", typ, got, want)
		}
	}
	for name, b := range map[string][]byte{"missing": b, "cut": attr(8, 'a', 'b')[:5], "length 3": {3, 0, 8, 0}, "length 0": make([]byte, 8), "empty": nil} {
		if got := attribute(b, 8); got != nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestErrnoOf(t *testing.T) {
	minus := func(errno unix.Errno) []byte { return word(uint32(-int32(errno))) }
	for _, tt := range []struct {
		data []byte
		want error
	}{
		{minus(unix.EPERM), ErrDenied}, {minus(unix.EOPNOTSUPP), ErrUnsupported}, {minus(unix.EINVAL), ErrUnsupported},
		{minus(unix.EBUSY), unix.EBUSY}, {word(0), nil}, {word(5), nil}, {nil, nil}, {[]byte{1, 2}, nil},
	} {
		if err := errnoOf(tt.data); !errors.Is(err, tt.want) {
			t.Errorf("%v: %v, want %v", tt.data, err, tt.want)
		}
	}
}

func FuzzDecodeLink(f *testing.F) {
	f.Add(vethMessage())
	f.Add(append(ifInfo(0, unix.ARPHRD_LOOPBACK, 1, 9), slices.Concat(attr(unix.IFLA_IFNAME, []byte("a\xff\x00")...), attr(unix.IFLA_MTU, word(65536)...))...))
	f.Add(vethMessage()[:40])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var l Link
		if l.decode(b) != nil {
			return
		}
		if l.Name == "" || l.Kind == "" || !utf8.ValidString(l.Name+l.Kind+l.Address) || strings.ContainsRune(l.Name, 0) && !bytes.ContainsRune(b, 0) {
			t.Errorf("decoded as %+v", l)
		}
		if l.Counted < 0 || l.Counted > linkCounters {
			t.Errorf("%d counters", l.Counted)
		}
	})
}

func FuzzMessages(f *testing.F) {
	f.Add(slices.Concat(message(16, 2, 1, 'a'), message(3, 0, 1, word(0)...)))
	f.Add(message(2, 0, 1, word(0xffffffff)...))
	f.Add(make([]byte, 16))
	f.Fuzz(func(t *testing.T, b []byte) {
		seen := 0
		_, _ = messages(b, func(h unix.NlMsghdr, data []byte) (bool, error) {
			if len(data) != int(h.Len)-unix.SizeofNlMsghdr {
				t.Errorf("%d bytes of a message of %d", len(data), h.Len)
			}
			seen += int(h.Len)
			_ = errnoOf(data)
			return false, nil
		})
		if seen > len(b) {
			t.Errorf("messages of %d bytes in %d", seen, len(b))
		}
	})
}

func FuzzAttribute(f *testing.F) {
	f.Add(slices.Concat(attr(5, 'a'), attr(6, 'b', 'c')), uint16(6))
	f.Add([]byte{3, 0, 8, 0}, uint16(8))
	f.Add([]byte{5, 0, 8, 0, 1}, uint16(8))
	f.Fuzz(func(t *testing.T, b []byte, typ uint16) {
		if got := attribute(b, typ); len(got) > 0 && !bytes.Contains(b, got) {
			t.Errorf("%q is not in %q", got, b)
		}
	})
}
