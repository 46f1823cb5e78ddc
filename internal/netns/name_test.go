package netns

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestBestName(t *testing.T) {
	for _, tt := range []struct {
		n    Namespace
		want string
	}{
		{Namespace{Host: true, mountNS: "x", Containers: []Container{{Name: "web"}}}, "host"},
		{Namespace{Containers: []Container{{Name: "web"}, {Name: "sidecar"}}, mountNS: "x"}, "container:web"},
		{Namespace{mountNS: "blue"}, "named:blue"},
		{Namespace{Key: Key{Ino: 7}}, "inode:7"},
		{Namespace{Key: Key{Ino: 7}, byProcfs: true}, "procfs:7"},
		{Namespace{mountNS: "a\xffb\n"}, "named:a\uFFFDb\n"},
		{Namespace{mountNS: strings.Repeat("ü", 150)}, "named:" + strings.Repeat("ü", maxName/2)},
	} {
		if got := tt.n.bestName(); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.n, got, tt.want)
		}
	}
	if got := (&Namespace{Key: Key{Ino: 7}, byProcfs: true}).Inode(); got != "" {
		t.Errorf("inode of a namespace that the kernel hides: %q", got)
	}
}

// TestNamesAreUnique: whatever the names from outside are, no two namespaces get one name, as that would be one series with
// two values.
func TestNamesAreUnique(t *testing.T) {
	odd := []string{"a", "a@1", "a@2", "a@1@1", "@1", "", "\xff", "\xfe", "host", strings.Repeat("x", 300), strings.Repeat("x", 301)}
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var all []*Namespace
		for ino := range uint64(1 + rng.IntN(6)) {
			n := &Namespace{Key: Key{Dev: 1, Ino: ino + 1}}
			name := odd[rng.IntN(len(odd))]
			switch rng.IntN(3) {
			case 0:
				n.mountNS = name
			case 1:
				n.Containers = []Container{{Name: name}}
			}
			all = append(all, n)
		}
		assignNames(all)
		var names []string
		for _, n := range all {
			if !utf8.ValidString(n.Name) || len(n.Name) > maxName+40 {
				t.Errorf("name %q", n.Name)
			}
			names = append(names, n.Name)
		}
		slices.Sort(names)
		if got := slices.Compact(slices.Clone(names)); len(got) != len(all) {
			t.Fatalf("seed %d: names %q", seed, names)
		}
	}
}

// TestAddPID holds that the lowest processes are kept, in whatever order they come, and all are counted.
func TestAddPID(t *testing.T) {
	for seed := range uint64(20) {
		var n Namespace
		for _, i := range rand.New(rand.NewPCG(seed, 0)).Perm(10) {
			n.addPID(i + 100)
		}
		if got := fmt.Sprint(n.pids); n.Processes != 10 || got != "[100 101 102 103]" || n.firstPID() != 100 {
			t.Errorf("seed %d: %d processes, of which %s", seed, n.Processes, got)
		}
	}
	if got := (&Namespace{}).firstPID(); got != 0 {
		t.Errorf("first of none: %d", got)
	}
}
