package netns_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

// engine answers as a Docker Engine does. Which cgroup a process is in comes from a folder of the test's, so that no cgroup
// needs to be made; all else is the real procfs.
type engine struct {
	t      *testing.T
	socket string
	proc   string

	mu         sync.Mutex
	containers []container
	handler    http.HandlerFunc // in place of the right answers, if not nil
	asked      int              // requests so far
}

type container struct {
	id, name, mode string
	pid            int
	created        int64
	cgroup         string // of its process, if not that of the id
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	handler, containers := e.handler, e.containers
	e.asked++
	e.mu.Unlock()
	if handler != nil {
		handler(w, r)
		return
	}
	all := []map[string]any{}
	for _, c := range containers {
		if r.URL.Path == "/containers/"+c.id+"/json" {
			_ = json.NewEncoder(w).Encode(map[string]any{"Id": c.id, "State": map[string]any{"Pid": c.pid}})
			return
		}
		all = append(all, map[string]any{
			"Id": c.id, "Names": []string{"/" + c.name}, "Created": c.created, "HostConfig": map[string]any{"NetworkMode": c.mode},
		})
	}
	if r.URL.Path != "/containers/json" {
		http.NotFound(w, r)
		return
	}
	_ = json.NewEncoder(w).Encode(all)
}

func (e *engine) answer(handler http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.handler = handler
}

// run says which containers there are from now on.
func (e *engine) run(containers ...container) {
	e.t.Helper()
	if err := os.RemoveAll(e.proc); err != nil {
		e.t.Fatal(err)
	}
	for _, c := range containers {
		dir := filepath.Join(e.proc, fmt.Sprint(c.pid))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			e.t.Fatal(err)
		}
		cgroup := c.cgroup
		if cgroup == "" {
			cgroup = "0::/system.slice/docker-" + c.id + ".scope\n"
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup"), []byte(cgroup), 0o644); err != nil {
			e.t.Fatal(err)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.containers = containers
}

func (e *engine) requests() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asked
}

// startEngine starts an engine without containers.
func startEngine(t *testing.T) (*engine, *netns.Discovery) {
	t.Helper()
	dir, err := os.MkdirTemp("", "vt") // the name of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	e := &engine{t: t, socket: filepath.Join(dir, "sock"), proc: filepath.Join(dir, "proc")}
	listener, err := net.Listen("unix", e.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(e)
	server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	return e, &netns.Discovery{Docker: netns.NewDocker(e.socket, e.proc)}
}

// id makes a container's id of 64 digits.
func id(digit string) string { return strings.Repeat(digit, 64) }

// names returns the containers of a namespace, by name.
func names(n *netns.Namespace) (names []string) {
	for _, c := range n.Containers {
		names = append(names, c.Name)
	}
	return names
}

func TestDockerNames(t *testing.T) {
	web, db := nettest.WithProcess(t), nettest.WithProcess(t)
	e, d := startEngine(t)
	e.run(container{id: id("a"), name: "web", pid: web.Pid}, container{id: id("b"), name: "db", pid: db.Pid})
	found := discover(t, d)
	for n, want := range map[*nettest.NS]string{web: "web", db: "db"} {
		got := find(t, found, n)
		if got.Name != "container:"+want || len(got.Containers) != 1 || got.Containers[0].Runtime != "docker" || got.Containers[0].PID != n.Pid {
			t.Errorf("%s: %+v", want, got)
		}
	}
	// Nothing changed among them: the engine is left alone, unless a test beside this one makes a namespace.
	before := e.requests()
	for range 20 {
		if got := find(t, discover(t, d), web).Name; got != "container:web" {
			t.Fatalf("later: %s", got)
		}
	}
	if asked := e.requests() - before; asked > 20 {
		t.Errorf("%d requests for 20 discoveries without a change", asked)
	}
}

// TestDockerJoined: containers that share a namespace are all there, and the one that made it names it, although another is
// older.
func TestDockerJoined(t *testing.T) {
	n := nettest.WithProcess(t)
	second, third := child(t, n), child(t, n)
	e, d := startEngine(t)
	e.run(
		container{id: id("a"), name: "sidecar", pid: second, mode: "container:" + id("c"), created: 1},
		container{id: id("b"), name: "logger", pid: third, mode: "container:" + id("c"), created: 3},
		container{id: id("c"), name: "web", pid: n.Pid, mode: "bridge", created: 2},
	)
	got := find(t, discover(t, d), n)
	if got.Name != "container:web" {
		t.Errorf("name %s", got.Name)
	}
	if diff := cmp.Diff([]string{"web", "sidecar", "logger"}, names(got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestDockerHostNetwork: a container in the host's namespace does not rename it.
func TestDockerHostNetwork(t *testing.T) {
	e, d := startEngine(t)
	e.run(container{id: id("a"), name: "agent", pid: os.Getpid(), mode: "host"})
	found := discover(t, d)
	if !found.HomeIsHost() {
		t.Skip("the test does not run in the host's namespace")
	}
	if got := found.Namespaces[0]; got.Name != netns.HostName || len(got.Containers) != 0 {
		t.Errorf("host: %+v", got)
	}
}

// TestDockerRestart: a container that got another process and namespace is found there, not at its old place.
func TestDockerRestart(t *testing.T) {
	old, young := nettest.WithProcess(t), nettest.WithProcess(t)
	e, d := startEngine(t)
	e.run(container{id: id("a"), name: "web", pid: old.Pid})
	if got := find(t, discover(t, d), old).Name; got != "container:web" {
		t.Fatalf("at first: %s", got)
	}
	e.run(container{id: id("a"), name: "web", pid: young.Pid})
	old.Delete(t)
	if got := find(t, discover(t, d), young).Name; got != "container:web" {
		t.Errorf("after the restart: %s", got)
	}
}
