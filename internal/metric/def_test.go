package metric

import (
	"strings"
	"testing"
)

func TestDefCheck(t *testing.T) {
	good := func() *Def {
		return &Def{
			Name: "veth_tcp_retrans_segs_total", Type: Counter, Labels: []string{NetnsLabel, "device"},
			Help: "Segments sent again (Tcp RetransSegs).", Source: "/proc/net/snmp Tcp RetransSegs", Meaning: "Loss.",
		}
	}
	for _, tt := range []struct {
		name  string
		spoil func(*Def)
		want  []string // complaints, one line each; none if it is fine
	}{
		{"good", func(*Def) {}, nil},
		{"gauge", func(d *Def) { d.Name, d.Type = "veth_device_mtu_bytes", Gauge }, nil},
		{"own", func(d *Def) { d.Name, d.Type = "vethexporter_build_info", Gauge }, nil},
		{"no label", func(d *Def) { d.Labels = nil }, nil},
		{"without netns", func(d *Def) { d.Labels = []string{"cpu", "type"} }, nil},
		{"other prefix", func(d *Def) { d.Name = "node_x_total" }, []string{"prefix"}},
		{"prefix only", func(d *Def) { d.Name, d.Type = "veth_", Gauge }, []string{"prefix"}},
		{"upper case", func(d *Def) { d.Name = "veth_RetransSegs_total" }, []string{"prefix"}},
		{"double underscore", func(d *Def) { d.Name = "veth__x_total" }, []string{"prefix"}},
		{"counter without total", func(d *Def) { d.Name = "veth_x" }, []string{"_total"}},
		{"gauge with total", func(d *Def) { d.Type = Gauge }, []string{"_total"}},
		{"label in upper case", func(d *Def) { d.Labels[1] = "Device" }, []string{"not snake case"}},
		{"empty label", func(d *Def) { d.Labels[1] = "" }, []string{"not snake case"}},
		{"label twice", func(d *Def) { d.Labels[1] = "cpu"; d.Labels = append(d.Labels, "cpu") }, []string{"twice"}},
		{"netns later", func(d *Def) { d.Labels = []string{"device", NetnsLabel} }, []string{"first"}},
		{"no help", func(d *Def) { d.Help = "" }, []string{"Help must be one line", "sentences"}},
		{"bar in help", func(d *Def) { d.Help = "a|b." }, []string{"Help must be one line"}},
		{"two lines", func(d *Def) { d.Meaning = "a\nb." }, []string{"Meaning must be one line"}},
		{"space around", func(d *Def) { d.Source = " x" }, []string{"Source must be one line"}},
		{"no sentence", func(d *Def) { d.Meaning = "Loss" }, []string{"sentences"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := good()
			tt.spoil(d)
			err := d.Check()
			if len(tt.want) == 0 {
				if err != nil {
					t.Fatalf("complains: %v", err)
				}
				return
			}
			if err == nil {
				t.Fatal("does not complain")
			}
			if lines := strings.Split(err.Error(), "\n"); len(lines) != len(tt.want) {
				t.Errorf("complaints %q, want %d", lines, len(tt.want))
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), d.Name+": ") {
					t.Errorf("complaint %q lacks %q or the name", err, want)
				}
			}
		})
	}
}

func TestTypeText(t *testing.T) {
	for typ, want := range map[Type]string{Gauge: "gauge", Counter: "counter"} {
		if got, err := typ.MarshalText(); err != nil || string(got) != want {
			t.Errorf("type %d: %q, %v", typ, got, err)
		}
	}
}
