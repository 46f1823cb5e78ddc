package nettest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	prometheusReady = 30 * time.Second
	queryTimeout    = 10 * time.Second
)

// PrometheusOptions says what a Prometheus does.
type PrometheusOptions struct {
	Targets       []string      // host:port of each, scraped as job "test"
	ScrapeConfigs string        // more jobs, as a YAML list
	Interval      time.Duration // between scrapes, and between evaluations of rules; one second by default
	RuleFiles     []string      // absolute paths
	Flags         []string      // more flags
}

// Prometheus is a server of its own that runs until the test ends.
type Prometheus struct {
	URL string
}

// Series is one element of the answer to a query.
type Series struct {
	Labels map[string]string
	Value  float64
}

// StartPrometheus returns when the server is ready to answer.
func StartPrometheus(t testing.TB, opts PrometheusOptions) *Prometheus {
	t.Helper()
	program := Tool(t, "prometheus")
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, []byte(opts.config(t)), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 3 { // another process may take the port first
		addr := fmt.Sprintf("127.0.0.1:%d", FreePort(t))
		p := Start(t, exec.Command(program, append([]string{
			"--config.file=" + config, "--storage.tsdb.path=" + filepath.Join(dir, "data"),
			"--web.listen-address=" + addr, "--log.level=warn"}, opts.Flags...)...))
		t.Cleanup(func() {
			if err := p.Stop(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				t.Logf("prometheus said:\n%s", p.Output())
			}
		})
		server := &Prometheus{URL: "http://" + addr}
		for end := time.Now().Add(prometheusReady); p.Running() && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if _, err := server.get("/-/ready"); err == nil {
				return server
			}
		}
		if !strings.Contains(p.Output(), "address already in use") {
			break
		}
	}
	t.Fatal("prometheus does not become ready")
	return nil
}

// config returns the configuration file. JSON is YAML, and quotes strings safely.
func (o PrometheusOptions) config(t testing.TB) string {
	t.Helper()
	interval := cmp.Or(o.Interval, time.Second)
	quote := func(list []string) string {
		if list == nil {
			list = []string{}
		}
		text, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	every := fmt.Sprintf("%dms", interval.Milliseconds())
	text := fmt.Sprintf("global: {scrape_interval: %s, scrape_timeout: %s, evaluation_interval: %s}\nrule_files: %s\nscrape_configs:\n",
		every, every, every, quote(o.RuleFiles))
	if len(o.Targets) > 0 {
		text += fmt.Sprintf("- {job_name: test, static_configs: [{targets: %s}]}\n", quote(o.Targets))
	}
	return text + o.ScrapeConfigs
}

// Query evaluates an expression now. A scalar is one series without labels.
func (p *Prometheus) Query(t testing.TB, promql string) []Series {
	t.Helper()
	series, err := p.query(promql)
	if err != nil {
		t.Fatalf("query %s: %v", promql, err)
	}
	return series
}

// Eventually evaluates an expression until cond is content with the answer, which it returns.
func (p *Prometheus) Eventually(t testing.TB, timeout time.Duration, promql string, cond func([]Series) bool) []Series {
	t.Helper()
	for end := time.Now().Add(timeout); ; time.Sleep(100 * time.Millisecond) {
		series := p.Query(t, promql)
		if cond(series) {
			return series
		}
		if time.Now().After(end) {
			t.Fatalf("query %s: after %v still %v", promql, timeout, series)
		}
	}
}

func (p *Prometheus) query(promql string) ([]Series, error) {
	body, err := p.get("/api/v1/query?query=" + url.QueryEscape(promql))
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	var vector []struct {
		Metric map[string]string
		Value  sample
	}
	switch answer.Data.ResultType {
	case "vector":
		err = json.Unmarshal(answer.Data.Result, &vector)
	case "scalar":
		var s sample
		err = json.Unmarshal(answer.Data.Result, &s)
		return []Series{{Value: float64(s)}}, err
	default:
		err = fmt.Errorf("result is a %s", answer.Data.ResultType)
	}
	series := make([]Series, 0, len(vector))
	for _, v := range vector {
		series = append(series, Series{Labels: v.Metric, Value: float64(v.Value)})
	}
	return series, err
}

// sample is the value of Prometheus's pair of a time and a value.
type sample float64

// UnmarshalJSON reads a pair such as [1700000000.1, "42"].
func (s *sample) UnmarshalJSON(text []byte) error {
	var at float64
	var value string
	if err := json.Unmarshal(text, &[]any{&at, &value}); err != nil {
		return err
	}
	v, err := strconv.ParseFloat(value, 64)
	*s = sample(v)
	return err
}

func (p *Prometheus) get(path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), queryTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+path, nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // leaves no descriptors that tests would count
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status + ": " + string(body))
	}
	return body, err
}

// FreePort returns a TCP port of the loopback that nobody listens on at the moment.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
