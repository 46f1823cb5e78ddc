package main_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/vethexporter/vethexporter/internal/nettest"
)

// TestFormats asks for each format that Prometheus knows, and compares what they say.
func TestFormats(t *testing.T) {
	dir := t.TempDir()
	still := nettest.Named(t, dir, "a\"b\\c\nd") // has to be escaped
	nettest.TCPFlow(t, still, still, "127.0.0.1", nettest.FlowOptions{Bytes: 1 << 20})
	const name = "named:a\"b\\c\nd"
	// The library reads OpenMetrics slowly, hence few collectors.
	e := start(t, "--path.netns="+dir, only(name), "--collector.disable-defaults", "--collector.device", "--collector.conntrack")
	text := e.scrape(t)
	if text.value(t, "veth_device_receive_bytes_total", "netns", name, "device", "lo") < 1<<20 || len(text.of(name)) < 20 {
		t.Errorf("only %v", text.of(name))
	}
	for accept, wantType := range map[string]string{
		"application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1":                                                         "application/openmetrics-text; version=1.0.0",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,application/openmetrics-text;version=1.0.0;q=0.8": "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
		"text/plain;version=0.0.4": "text/plain; version=0.0.4", "*/*": "text/plain; version=0.0.4", "image/png": "text/plain; version=0.0.4",
	} {
		resp, body, err := e.get("/metrics", "Accept", accept)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status, err)
		}
		if got := resp.Header.Get("Content-Type"); !strings.HasPrefix(got, wantType) {
			t.Errorf("%s: answered with %s", accept, got)
		}
		openMetrics := strings.HasPrefix(wantType, "application/openmetrics")
		if openMetrics != bytes.HasSuffix(body, []byte("\n# EOF\n")) {
			t.Errorf("%s: ends in %q", accept, body[len(body)-10:])
		}
		if openMetrics {
			body = goMetrics.ReplaceAll(body, nil)
		}
		s, err := decode(body, expfmt.ResponseFormat(resp.Header))
		if err != nil {
			t.Errorf("%s: %v", accept, err)
			continue
		}
		// The namespace is still; what the exporter says of itself is not, but for the names.
		if got := s.of(name); !maps.Equal(got, text.of(name)) {
			t.Errorf("%s: %v\nwant %v", accept, got, text.of(name))
		}
		for metric, samples := range text.samples {
			if got := len(s.samples[metric]); got != len(samples) && strings.HasPrefix(metric, "veth") {
				t.Errorf("%s: %d series of %s, want %d", accept, got, metric, len(samples))
			}
		}
	}
}

// goMetrics are what the Go library tells of the process. The strict reader of OpenMetrics refuses them, as go_memstats_alloc_bytes
// and its _total are one family there; Prometheus does not mind.
var goMetrics = regexp.MustCompile(`(?m)^(# (HELP|TYPE) )?(go|process)_.*\n`)

// decode reads any format. OpenMetrics names the family of a counter without the end of its samples' names.
func decode(body []byte, format expfmt.Format) (*scrape, error) {
	var families []*dto.MetricFamily
	for decoder := expfmt.NewDecoder(bytes.NewReader(body), format); ; {
		f := &dto.MetricFamily{}
		err := decoder.Decode(f)
		if errors.Is(err, io.EOF) {
			return collect(slices.Values(families))
		}
		if err != nil {
			return nil, err
		}
		if f.GetType() == dto.MetricType_COUNTER && !strings.HasSuffix(f.GetName(), "_total") {
			name := f.GetName() + "_total"
			f.Name = &name
		}
		families = append(families, f)
	}
}

// TestCompression takes the answer compressed, or not.
func TestCompression(t *testing.T) {
	e := start(t)
	for accept, zipped := range map[string]bool{
		"gzip": true, "deflate, gzip;q=0.5": true, "*": true, "": false, "identity": false, "gzip;q=0": false, "br": false,
	} {
		resp, body, err := e.get("/metrics", "Accept-Encoding", accept)
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Header.Get("Content-Encoding") == "gzip"; got != zipped || resp.Header.Get("Vary") == "" {
			t.Errorf("%q: %v", accept, resp.Header)
		}
		if zipped {
			z, err := gzip.NewReader(bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if body, err = io.ReadAll(z); err != nil {
				t.Errorf("%q: %v", accept, err)
			}
		}
		if _, err := parse(body); err != nil {
			t.Errorf("%q: %v", accept, err)
		}
	}
}
