package netns

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

const (
	// dockerWait is how long a discovery waits for the engine. A later answer is used by the next discovery.
	dockerWait = 250 * time.Millisecond
	// dockerTimeout ends a refresh that hangs, so that it holds its goroutine and connection no longer.
	dockerTimeout = 5 * time.Second
	// dockerMaxAge is after what time names are asked for again although nothing changed: a container may be renamed.
	dockerMaxAge = time.Minute
	// dockerBackoff is how long an engine that failed is left alone.
	dockerBackoff = 10 * time.Second
	// dockerMaxBody bounds an answer of the engine, in bytes.
	dockerMaxBody = 32 << 20
)

var containerIDRE = regexp.MustCompile(`^[0-9a-f]{12,64}$`)

// Docker tells which namespaces belong to containers of a Docker Engine, or of what speaks its API as Podman does. It is
// asked only when something is there that it has not explained yet. It is safe for concurrent use.
type Docker struct {
	client *http.Client
	proc   string

	mu         sync.Mutex
	containers map[string]Container // running ones, by id
	asked      map[Key]int          // namespaces that were there at the last answer, with their first process
	refreshed  time.Time
	failed     time.Time
	err        error         // of the last refresh
	running    chan struct{} // closed at the end of the refresh under way; nil if there is none
}

// NewDocker returns a client of the engine that listens on the unix socket. It need not exist yet.
func NewDocker(socket, proc string) *Docker {
	dialer := net.Dialer{}
	return &Docker{
		proc: proc,
		client: &http.Client{Timeout: dockerTimeout, Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "unix", socket)
			},
			DisableKeepAlives: true,
		}},
	}
}

// identify adds to the namespaces of s the containers that they belong to. An engine that is not there, or is slow, costs only
// the names; the error says so.
func (d *Docker) identify(ctx context.Context, s *search) error {
	d.mu.Lock()
	if d.stale(s) {
		d.refresh(s)
	}
	running := d.running
	d.mu.Unlock()

	if running != nil {
		wait := dockerWait
		if end, ok := ctx.Deadline(); ok {
			wait = min(wait, time.Until(end)/8) // the names must not cost a short scrape the namespaces
		}
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-running:
		case <-timer.C:
		case <-ctx.Done():
		}
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	for id, c := range d.containers {
		key, ok := s.pidKey[c.PID]
		if ok && c.key == (Key{}) && d.owns(c) {
			c.key = key
			d.containers[id] = c
		}
		if n := s.byKey[key]; ok && key == c.key && !n.Host {
			n.Containers = append(n.Containers, c)
		}
	}
	for _, n := range s.order {
		slices.SortFunc(n.Containers, func(a, b Container) int {
			// The container that made the namespace names it, not one that joined it later.
			return cmp.Or(cmp.Compare(a.joins, b.joins), cmp.Compare(a.created, b.created), cmp.Compare(a.ID, b.ID))
		})
	}
	return d.err
}

// stale tells whether the engine has to be asked: after a while, for a namespace that was not there at its last answer, or
// when a container's process is elsewhere or gone. The caller holds mu.
func (d *Docker) stale(s *search) bool {
	now := time.Now()
	if d.running != nil || now.Sub(d.failed) < dockerBackoff {
		return false
	}
	if now.Sub(d.refreshed) > dockerMaxAge {
		return true
	}
	for _, c := range d.containers {
		if s.pidKey[c.PID] != c.key {
			return true
		}
	}
	for _, n := range s.order {
		if pid, ok := d.asked[n.Key]; !ok || pid != n.firstPID() {
			return true
		}
	}
	return false
}

// refresh starts to ask the engine. The caller holds mu.
func (d *Docker) refresh(s *search) {
	asked := make(map[Key]int, len(s.order))
	for _, n := range s.order {
		asked[n.Key] = n.firstPID()
	}
	known := d.containers
	done := make(chan struct{})
	d.running = done
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), dockerTimeout)
		defer cancel()
		containers, err := d.list(ctx, known)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.running, d.err = nil, err
		switch {
		case err == nil:
			d.containers, d.asked, d.refreshed = containers, asked, time.Now()
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
			d.err = nil // no engine runs here, or not now
			fallthrough
		default:
			// What is known stays: it is used only where a container's process still is in the namespace where it was.
			d.failed = time.Now()
		}
		close(done)
	}()
}

// listed is an element of GET /containers/json, inspected the answer of GET /containers/{id}/json: what is used of them.
type listed struct {
	ID         string `json:"Id"`
	Names      []string
	Created    int64
	HostConfig struct{ NetworkMode string }
}

type inspected struct {
	State struct{ Pid int }
}

// list returns the running containers with their process. Those in known are asked for again only if their process is not
// theirs any more.
func (d *Docker) list(ctx context.Context, known map[string]Container) (map[string]Container, error) {
	var all []listed
	if err := d.get(ctx, "/containers/json", &all); err != nil {
		return nil, err
	}
	containers := make(map[string]Container, len(all))
	var failed error
	for _, l := range all {
		if !containerIDRE.MatchString(l.ID) {
			return nil, fmt.Errorf("docker: container id %.80q is not one", l.ID)
		}
		c := Container{ID: l.ID, Name: l.ID[:12], Runtime: "docker", PID: known[l.ID].PID, created: l.Created}
		for _, name := range l.Names {
			// A linked container also has the names that others know it by, as /web/db.
			if name = strings.TrimPrefix(name, "/"); name != "" && !strings.Contains(name, "/") {
				c.Name = name
			}
		}
		if id, ok := strings.CutPrefix(l.HostConfig.NetworkMode, "container:"); ok {
			c.joins = id
		}
		if !d.owns(c) {
			var in inspected
			if err := d.get(ctx, "/containers/"+l.ID+"/json", &in); err != nil {
				if !errors.Is(err, errNotFound) { // else it ended since it was listed
					failed = err
				}
				continue // costs only this one its name
			}
			c.PID = in.State.Pid
			if !d.owns(c) {
				continue
			}
		}
		containers[c.ID] = c
	}
	if failed != nil && len(containers) == 0 {
		return nil, failed
	}
	return containers, nil
}

// owns tells whether the container's process is really one of the container: its cgroup carries the container's id. So a
// process that got the number of an ended one is never taken for it.
func (d *Docker) owns(c Container) bool {
	if c.PID <= 0 {
		return false
	}
	fs, err := procfs.NewFS(d.proc)
	if err != nil {
		return false
	}
	process, err := fs.Proc(c.PID)
	if err != nil {
		return false
	}
	cgroups, err := process.Cgroups()
	return err == nil && slices.ContainsFunc(cgroups, func(g procfs.Cgroup) bool { return strings.Contains(g.Path, c.ID) })
}

var errNotFound = errors.New("not found")

// get asks the engine for one JSON document.
func (d *Docker) get(ctx context.Context, path string, into any) error {
	u := url.URL{Scheme: "http", Host: "docker", Path: path}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return fmt.Errorf("docker: %s: %w", path, errNotFound)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("docker: %s: %s", path, resp.Status)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, dockerMaxBody)).Decode(into); err != nil {
		return fmt.Errorf("docker: %s: %w", path, err)
	}
	return nil
}
