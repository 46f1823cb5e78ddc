package netns_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vethexporter/vethexporter/internal/netns"
	"github.com/vethexporter/vethexporter/internal/nettest"
)

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
