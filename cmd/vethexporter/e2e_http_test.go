package main_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vethexporter/vethexporter/internal/nettest"
)

// prefixes returns the first two words of the names of all metrics.
func prefixes(s *scrape) []string {
	found := map[string]bool{}
	for name := range s.samples {
		words := strings.SplitN(name, "_", 3)
		found[strings.Join(words[:min(2, len(words))], "_")] = true
	}
	return slices.Sorted(maps.Keys(found))
}

// collectorPrefixes are those of what collectors emit, which leaves the exporter's own.
func collectorPrefixes(s *scrape) []string {
	return slices.DeleteFunc(prefixes(s), func(prefix string) bool {
		return !strings.HasPrefix(prefix, "veth_") || prefix == "veth_scrape" || prefix == "veth_netns"
	})
}

// collectors returns which ran.
func collectors(s *scrape) (names []string) {
	for _, x := range s.samples["veth_scrape_collector_success"] {
		names = append(names, x.labels["collector"])
	}
	slices.Sort(names)
	return names
}

// TestCollectFilter asks for some collectors only, as two scrape jobs of different intervals do.
func TestCollectFilter(t *testing.T) {
	e := start(t, "--no-collector.softirq")
	_, body, err := e.get("/metrics?collect[]=tcp&collect[]=softnet")
	if err != nil {
		t.Fatal(err)
	}
	s, err := parse(body)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := collectorPrefixes(s), []string{"veth_softnet", "veth_tcp"}; !slices.Equal(got, want) {
		t.Errorf("metrics of %q, want %q", got, want)
	}
	if got, want := collectors(s), []string{"softnet", "tcp"}; !slices.Equal(got, want) {
		t.Errorf("collectors %q, want %q", got, want)
	}
	for _, name := range []string{"vethexporter_build_info", "go_goroutines", "process_open_fds", "veth_scrape_duration_seconds", "veth_netns_info"} {
		if len(s.samples[name]) == 0 {
			t.Errorf("no %s", name)
		}
	}
	for _, name := range []string{"bogus", "softirq"} { // one that does not exist, one that is disabled
		resp, body, err := e.get("/metrics?collect[]=tcp&collect[]=" + name)
		if err != nil || resp.StatusCode != http.StatusBadRequest || !bytes.Contains(body, []byte(name)) {
			t.Errorf("collect %s: %v, %v: %s", name, resp.Status, err, body)
		}
	}
}

// TestCollectorFlags switches collectors on and off.
func TestCollectorFlags(t *testing.T) {
	s := start(t, "--no-collector.tcp", "--no-collector.conntrack").scrape(t)
	if got := collectors(s); slices.Contains(got, "tcp") || slices.Contains(got, "conntrack") || !slices.Contains(got, "device") {
		t.Errorf("without tcp and conntrack: %q", got)
	}
	s = start(t, "--collector.disable-defaults", "--collector.softnet").scrape(t)
	if got, want := collectors(s), []string{"softnet"}; !slices.Equal(got, want) {
		t.Errorf("collectors %q, want %q", got, want)
	}
	if got, want := collectorPrefixes(s), []string{"veth_softnet"}; !slices.Equal(got, want) {
		t.Errorf("metrics of %q, want %q", got, want)
	}
}

// TestNetnsFilter leaves out namespaces by name. Both expressions have to match the whole of it.
func TestNetnsFilter(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"red1", "red2", "blue", "blue2"} {
		nettest.Named(t, dir, name)
	}
	s := start(t, "--path.netns="+dir, "--netns.include=host|named:red.|named:blue", "--netns.exclude=named:red2|.*ed").scrape(t)
	reported := map[string]bool{}
	for _, samples := range s.samples {
		for _, x := range samples {
			reported[x.labels["netns"]] = true
		}
	}
	if got, want := slices.Sorted(maps.Keys(reported)), []string{"", "host", "named:blue", "named:red1"}; !slices.Equal(got, want) {
		t.Errorf("namespaces %q, want %q", got, want)
	}
	if got := s.value(t, "veth_scrape_netns", "outcome", "excluded"); got < 2 {
		t.Errorf("%v excluded", got)
	}
	s.check(t, 3, "veth_scrape_netns", "outcome", "ok")
}

// TestPages looks at everything beside the metrics, with profiles off and on.
func TestPages(t *testing.T) {
	type page struct {
		status int
		text   string
	}
	check := func(e *exporter, pages map[string]page) {
		t.Helper()
		for path, want := range pages {
			resp, body, err := e.get(path)
			if err != nil || resp.StatusCode != want.status || !strings.Contains(string(body), want.text) {
				t.Errorf("%s: %v, %v, want %d with %q:\n%.300s", path, resp.Status, err, want.status, want.text, body)
			}
		}
	}
	e := start(t)
	check(e, map[string]page{
		"/-/healthy": {200, "healthy"}, "/-/ready": {200, "ready"}, "/": {200, `href="/metrics"`}, "/metrics": {200, "veth_scrape_duration_seconds "},
		"/bogus": {404, ""}, "/debug/pprof/": {404, ""}, "/debug/pprof/heap": {404, ""}, "/debug/pprof/cmdline": {404, ""},
	})
	if _, landing, _ := e.get("/"); bytes.Contains(landing, []byte("/debug/pprof")) {
		t.Error("the landing page names profiles")
	}
	for _, timeout := range []string{"soon", "0", "-1", "NaN", "1e9", "1s"} {
		resp, body, err := e.get("/metrics", timeoutHeader, timeout)
		if err != nil || resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), timeoutHeader) {
			t.Errorf("timeout %s: %v, %v: %.300s", timeout, resp.Status, err, body)
		}
	}
	check(start(t, "--web.enable-pprof", "--web.telemetry-path=/veth"), map[string]page{
		"/debug/pprof/": {200, "goroutine"}, "/debug/pprof/heap?debug=1": {200, "heap profile"}, "/": {200, `href="/veth"`},
		"/veth": {200, "veth_scrape_duration_seconds "}, "/metrics": {404, ""},
	})
}

// TestTLSAndPassword protects the metrics by a web configuration file, as every Prometheus exporter is.
func TestTLSAndPassword(t *testing.T) {
	dir := t.TempDir()
	pool := x509.NewCertPool()
	pool.AddCert(certificate(t, dir))
	config := filepath.Join(dir, "web.yml")
	const hash = "$2a$04$1KMKWNKMNV46OOqZo.wCTeS3YEIwagKkUMTJHABNd.dPOR3NX3LbS" // of "secret"
	if err := os.WriteFile(config, fmt.Appendf(nil,
		"tls_server_config: {cert_file: cert.pem, key_file: key.pem}\nbasic_auth_users: {prometheus: %q}\n", hash), 0o600); err != nil {
		t.Fatal(err)
	}
	e := start(t, "--web.config.file="+config)
	if resp, body, err := e.get("/metrics"); err == nil && resp.StatusCode == http.StatusOK {
		t.Errorf("answered without TLS: %.100s", body)
	}
	e.url = "https://" + e.addr()
	e.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
	for _, tt := range []struct {
		path, user, password string
		want                 int
	}{
		{"/metrics", "", "", 401}, {"/metrics", "prometheus", "wrong", 401}, {"/metrics", "other", "secret", 401}, {"/", "", "", 401},
		{"/metrics", "prometheus", "secret", 200},
	} {
		req, err := http.NewRequest(http.MethodGet, e.url+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tt.user != "" {
			req.SetBasicAuth(tt.user, tt.password)
		}
		resp, err := e.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != tt.want || strings.Contains(string(body), "veth_scrape") != (tt.want == 200) {
			t.Errorf("%s as %s with %q: %s, %v", tt.path, tt.user, tt.password, resp.Status, err)
		}
	}
}

// certificate writes one for the loopback, and its key.
func certificate(t *testing.T, dir string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: cert}, "key.pem": {Type: "EC PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(cert)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// TestTermination asks the program to end while a scrape is under way. The scrape is answered, and the program ends soon.
func TestTermination(t *testing.T) {
	proc := t.TempDir()
	linkProc(t, proc, "1", "self", "thread-self", "sys", "stat")
	fifo(t, filepath.Join(proc, "softirqs")) // makes the scrape last
	e := start(t, "--path.procfs="+proc)
	type answer struct {
		s   *scrape
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		s, err := e.try(timeoutHeader, "4")
		answered <- answer{s, err}
	}()
	eventually(t, 5*time.Second, "a scrape is under way", func() bool { return e.waits(t) })
	if err := e.Stop(); err != nil { // which waits for the end
		t.Fatal(err)
	}
	if code := e.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	a := <-answered
	if a.err != nil {
		t.Fatalf("the scrape under way: %v", a.err)
	}
	a.s.check(t, 1, "veth_scrape_collector_success", "collector", "softnet")
	a.s.check(t, 1, "veth_scrape_lost_threads")
	if _, err := e.try(); err == nil {
		t.Error("it still answers")
	}

	idle := start(t)
	begin := time.Now()
	if err := idle.Stop(); err != nil || idle.ExitCode() != 0 || time.Since(begin) > 5*time.Second {
		t.Errorf("idle: code %d after %v, %v", idle.ExitCode(), time.Since(begin), err)
	}
}
