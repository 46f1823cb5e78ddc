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
	"time"

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

// TestDockerPIDReuse: a process that got the number of a container's is not taken for it.
func TestDockerPIDReuse(t *testing.T) {
	n := nettest.WithProcess(t)
	e, d := startEngine(t)
	e.run(container{id: id("a"), name: "web", pid: n.Pid, cgroup: "0::/user.slice\n"})
	for range 2 {
		if got := find(t, discover(t, d), n); len(got.Containers) != 0 || strings.HasPrefix(got.Name, "container:") {
			t.Errorf("found %+v", got)
		}
	}
}

// TestDockerSlow: an engine that answers late costs a short wait, and its answer is there for a later discovery.
func TestDockerSlow(t *testing.T) {
	n := nettest.WithProcess(t)
	e, d := startEngine(t)
	e.run(container{id: id("a"), name: "web", pid: n.Pid})
	release := make(chan struct{})
	e.answer(func(w http.ResponseWriter, r *http.Request) {
		<-release
		e.answer(nil)
		e.ServeHTTP(w, r)
	})
	for range 2 { // also while the first request still hangs
		start := time.Now()
		got := find(t, discover(t, d), n)
		took := time.Since(start)
		if len(got.Containers) != 0 {
			t.Errorf("found %+v", got)
		}
		// The upper bound leaves a busy machine time; the wait itself is a quarter of a second.
		if took < netns.DockerWait || took > netns.DockerWait+2*time.Second {
			t.Errorf("took %v", took)
		}
	}
	close(release)
	eventually(t, "the name of the container", func() bool { return find(t, discover(t, d), n).Name == "container:web" })
}

// eventually fails the test if cond does not become true in good time.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not in 10 s", what)
		}
	}
}

// TestDockerLies: an engine that answers nonsense costs the names, and says so. It is asked again later.
func TestDockerLies(t *testing.T) {
	n := nettest.WithProcess(t)
	text := func(s string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s) }
	}
	for name, tt := range map[string]struct {
		handler http.HandlerFunc
		want    string // in the error
	}{
		"500":           {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) }, "500"},
		"no JSON":       {text("<html>"), "invalid character"},
		"other JSON":    {text(`{"message":"no"}`), "cannot unmarshal"},
		"cut off":       {text(`[{"Id":"` + id("a")), "unexpected EOF"},
		"empty":         {text(""), "EOF"},
		"id with slash": {text(`[{"Id":"../../../etc/passwd/aaaaaaaaaaaa"}]`), "is not one"},
		"short id":      {text(`[{"Id":"abc"}]`), "is not one"},
		"no id":         {text(`[{}]`), "is not one"},
		"long id":       {text(`[{"Id":"` + id("a") + `a"}]`), "is not one"},
		"huge": {func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `[{"Id":"`)
			for chunk := strings.Repeat("a", 1<<20); ; {
				if _, err := fmt.Fprint(w, chunk); err != nil {
					return
				}
			}
		}, ""}, // cut off at the limit, or by the timeout on a slow machine
		"broken connection": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			e, d := startEngine(t)
			e.run(container{id: id("a"), name: "web", pid: n.Pid})
			e.answer(tt.handler)
			d.Proc = "/proc"
			var found *netns.Found
			eventually(t, "an answer", func() bool {
				var err error
				if found, err = d.Discover(t.Context()); err != nil {
					t.Fatal(err)
				}
				return len(found.Errs) > 0
			})
			if got := find(t, found, n); len(got.Containers) != 0 {
				t.Errorf("found %+v", got)
			}
			if err := found.Errs[0]; !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "docker: ") {
				t.Errorf("error %q, want %q", err, tt.want)
			}
			e.answer(nil)
			d.Docker.Forgive()
			if got := find(t, discover(t, d), n).Name; got != "container:web" {
				t.Errorf("from an honest engine: %s", got)
			}
		})
	}
}

// TestDockerFailsLater: an engine that fails, or goes away, does not take the names of what still runs with it.
func TestDockerFailsLater(t *testing.T) {
	n := nettest.WithProcess(t)
	e, d := startEngine(t)
	e.run(container{id: id("a"), name: "web", pid: n.Pid})
	if got := find(t, discover(t, d), n).Name; got != "container:web" {
		t.Fatalf("at first: %s", got)
	}
	e.answer(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) })
	nettest.WithProcess(t) // a reason to ask
	asked := e.requests()
	for range 2 {
		found, err := d.Discover(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := find(t, found, n).Name; got != "container:web" {
			t.Errorf("with an engine that fails: %s", got)
		}
	}
	if e.requests() == asked {
		t.Error("the engine was not asked")
	}
	if err := os.Remove(e.socket); err != nil {
		t.Fatal(err)
	}
	d.Docker.Forgive()
	if got := find(t, discover(t, d), n).Name; got != "container:web" {
		t.Errorf("without an engine: %s", got)
	}
	// What is known of a container is not believed of another namespace.
	n.Delete(t)
	for _, other := range discover(t, d).Namespaces {
		if len(other.Containers) > 0 {
			t.Errorf("after its end: %+v", other)
		}
	}
}

// TestDockerOtherProcess: an engine cannot claim a namespace by the number of a process that is not its container's.
func TestDockerOtherProcess(t *testing.T) {
	n := nettest.WithProcess(t)
	e, d := startEngine(t)
	for _, pid := range []int{n.Pid, 0, -1, 1, 1 << 40} {
		e.run(container{id: id("a"), name: "thief", pid: pid, cgroup: "0::/docker/" + id("b") + "\n"})
		d.Docker.Forgive()
		found := discover(t, d)
		for _, got := range found.Namespaces {
			if len(got.Containers) > 0 {
				t.Errorf("process %d: %+v", pid, got)
			}
		}
		find(t, found, n)
	}
}

// TestDockerEnded: a container that ends between the list and the question for its process costs only itself.
func TestDockerEnded(t *testing.T) {
	n := nettest.WithProcess(t)
	e, d := startEngine(t)
	e.run(container{id: id("b"), name: "web", pid: n.Pid})
	e.answer(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/containers/json":
			fmt.Fprintf(w, `[{"Id":"%s","Names":["/gone"]},{"Id":"%s","Names":[]}]`, id("a"), id("b"))
		case "/containers/" + id("b") + "/json":
			fmt.Fprintf(w, `{"State":{"Pid":%d}}`, n.Pid)
		default:
			http.NotFound(w, r)
		}
	})
	if got := find(t, discover(t, d), n).Name; got != "container:"+id("b")[:12] { // it has no name: the id has to do
		t.Errorf("name %s", got)
	}
}

// TestDockerAbsent: a node without an engine, or one whose engine does not run, is nothing to complain of.
func TestDockerAbsent(t *testing.T) {
	dir := t.TempDir()
	for name, socket := range map[string]string{"no socket": filepath.Join(dir, "no"), "no listener": filepath.Join(dir, "left")} {
		if name == "no listener" {
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			l.Close()
		}
		d := &netns.Discovery{Docker: netns.NewDocker(socket, "/proc")}
		for range 3 {
			discover(t, d) // fails the test at an error
		}
	}
}
