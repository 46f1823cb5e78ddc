package main_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vethexporter/vethexporter/internal/nettest"
)

// binaryDir is where the program under test is; every user may reach it, as some tests run it as another one.
var binaryDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "vethexporter-e2e-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binaryDir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// build makes the program as it is shipped, once for all tests.
var build = sync.OnceValues(func() (string, error) {
	path := filepath.Join(binaryDir, "vethexporter")
	cmd := exec.Command("go", "build", "-race=false", "-buildvcs=false", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

func binary(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// exporter is the program, running.
type exporter struct {
	*nettest.Process
	url    string // without a slash at its end
	client *http.Client
}

// command is the program on a port of the loopback that the kernel chooses.
func command(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	return exec.Command(binary(t), append([]string{"--web.listen-address=127.0.0.1:0"}, args...)...)
}

// start runs the program until the test ends, and returns when it listens.
func start(t testing.TB, args ...string) *exporter {
	t.Helper()
	return launch(t, command(t, args...))
}

var listening = regexp.MustCompile(`msg="Listening on" address=(\S+)`)

// launch is start for a command that is not quite the usual one.
func launch(t testing.TB, cmd *exec.Cmd) *exporter {
	t.Helper()
	e := &exporter{Process: nettest.Start(t, cmd), client: &http.Client{
		Timeout: 30 * time.Second,
		// Kept connections would count among the descriptors, and hidden decompression would hide what is sent.
		Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true},
	}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(cmd.Path), e.Output())
		}
	})
	eventually(t, 20*time.Second, "the exporter listens", func() bool {
		match := listening.FindStringSubmatch(e.Output())
		if match != nil {
			e.url = "http://" + match[1]
		} else if !e.Running() {
			t.Fatalf("exporter ended with code %d", e.ExitCode())
		}
		return match != nil
	})
	return e
}

// addr returns where the exporter listens, as host:port.
func (e *exporter) addr() string { return strings.TrimPrefix(e.url, "http://") }

// get makes a request. The headers are names and values in turn.
func (e *exporter) get(path string, headers ...string) (*http.Response, []byte, error) {
	req, err := http.NewRequest(http.MethodGet, e.url+path, nil)
	if err != nil {
		return nil, nil, err
	}
	for pair := range slices.Chunk(headers, 2) {
		req.Header.Set(pair[0], pair[1])
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, body, err
}

// timeoutHeader is where Prometheus names the time that it waits.
const timeoutHeader = "X-Prometheus-Scrape-Timeout-Seconds"

// try scrapes; it is for goroutines other than the test's.
func (e *exporter) try(headers ...string) (*scrape, error) {
	begin := time.Now()
	resp, body, err := e.get("/metrics", headers...)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("scrape: %s: %.200s", resp.Status, body)
	}
	s, err := parse(body)
	if err != nil {
		return nil, err
	}
	s.took = time.Since(begin)
	return s, nil
}

// scrape scrapes.
func (e *exporter) scrape(t testing.TB, headers ...string) *scrape {
	t.Helper()
	s, err := e.try(headers...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// status returns a number of the process's /proc/PID/status.
func (e *exporter) status(t testing.TB, field string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", e.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			n, err := strconv.Atoi(strings.Fields(value)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s in /proc/PID/status", field)
	return 0
}

// fds returns how many descriptors the process has.
func (e *exporter) fds(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", e.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// waits tells whether a thread of the process waits for the other end of a FIFO.
func (e *exporter) waits(t testing.TB) bool {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", e.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		at, err := os.ReadFile(file)
		return err == nil && string(at) == "wait_for_partner"
	})
}

// logged returns the lines of the log that contain text.
func (e *exporter) logged(text string) []string {
	lines := strings.Split(e.Output(), "\n")
	return slices.DeleteFunc(lines, func(line string) bool { return !strings.Contains(line, text) })
}

// eventually waits for a condition.
func eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not after %v: %s", within, what)
		}
	}
}

// inodeName is how the exporter names a namespace of which it knows nothing else.
func inodeName(n *nettest.NS) string { return fmt.Sprintf("inode:%d", n.Ino) }

// mounts are the flags that make the exporter find namespaces of nettest.New.
func mounts(namespaces ...*nettest.NS) (flags []string) {
	for _, n := range namespaces {
		flags = append(flags, "--path.docker-netns="+filepath.Dir(n.Path))
	}
	return flags
}

// only is the flag that leaves out namespaces of other names, such as those of tests that run at the same time.
func only(names ...string) string {
	for i, name := range names {
		names[i] = regexp.QuoteMeta(name)
	}
	return "--netns.include=" + strings.Join(names, "|")
}

// openDir returns a new folder that every user may look into.
func openDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vethexporter-e2e-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// linkProc makes files of dir stand for those of the same name in /proc.
func linkProc(t testing.TB, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.Symlink(filepath.Join("/proc", name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}
