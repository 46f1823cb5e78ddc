package nettest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestDocker(t *testing.T) {
	d := StartDocker(t)
	none := d.Run(t, "none")
	if got, err := inode(fmt.Sprintf("/proc/%d/ns/net", none.Pid)); err != nil || got != none.NS.Ino || got == Host().Ino {
		t.Errorf("namespace %d (%v), want %d; the host's is %d", got, err, none.NS.Ino, Host().Ino)
	}
	if !strings.HasPrefix(d.Do(t, "ps", "--no-trunc", "--quiet"), none.ID) {
		t.Errorf("container %s is not listed", none.ID)
	}
	if got := len(none.NS.IPLink(t)); got != 1 {
		t.Errorf("%d devices", got)
	}
	Connect(t, Host(), Unique(), none.NS, "eth0")

	bridged := d.Run(t, "bridged", "--network", "bridge")
	if bridged.NS.IP == "" {
		t.Error("no address on the bridge")
	}
	eth0 := bridged.NS.IPLinkOf(t, "eth0")
	if eth0.LinkInfo.Kind != "veth" || eth0.LinkIndex == 0 {
		t.Errorf("device of the container: %+v", eth0)
	}
	sharing := d.Run(t, "sharing", "--network", "container:"+bridged.ID)
	if sharing.NS.Ino != bridged.NS.Ino {
		t.Errorf("namespace %d, want %d", sharing.NS.Ino, bridged.NS.Ino)
	}
	none.Remove(t)
	if _, err := os.Stat(none.NS.Path); err == nil {
		t.Error("process of a removed container lives")
	}
}

func TestPrometheus(t *testing.T) {
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, `test_total{side="left"} 42`)
	}))
	defer target.Close()
	rules := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(rules, []byte(
		"groups: [{name: g, rules: [{alert: Down, expr: up == 0, labels: {severity: page}}]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := StartPrometheus(t, PrometheusOptions{
		Targets:   []string{target.Listener.Addr().String()},
		Interval:  100 * time.Millisecond,
		RuleFiles: []string{rules},
	})
	if got := p.Query(t, "scalar(vector(7))"); len(got) != 1 || got[0].Value != 7 {
		t.Errorf("scalar: %v", got)
	}
	one := func(s []Series) bool { return len(s) == 1 }
	if got := p.Eventually(t, 10*time.Second, "test_total", one)[0]; got.Value != 42 || got.Labels["side"] != "left" || got.Labels["job"] != "test" {
		t.Errorf("series: %v", got)
	}
	target.Close()
	p.Eventually(t, 10*time.Second, `ALERTS{alertname="Down",alertstate="firing",severity="page"}`, one)
}
