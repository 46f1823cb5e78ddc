package nettest

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dockerSocket = "/run/docker.sock"
	dockerNetns  = "/run/docker/netns"
	dockerReady  = 30 * time.Second
	dockerImage  = "vethexporter-test/busybox"
	// dockerWait is how long a test waits for others that run a daemon of their own.
	dockerWait = 2 * time.Minute
)

// Docker is a Docker Engine that tests may run containers in.
type Docker struct {
	Socket string // path of the unix socket that it listens on
	Netns  string // folder in which it mounts the namespaces of its containers

	client string
	tag    string // of the image; unique, as an engine that was there already is shared with other tests
	image  string
}

// StartDocker returns the engine of the node if there is one, and otherwise one that runs until the test ends. Such a daemon
// keeps everything below a folder of its own, and changes neither the node's packet filter nor its forwarding: its bridge
// leads to the node and to other containers only. Only one test at a time gets one.
func StartDocker(t testing.TB) *Docker {
	t.Helper()
	Root(t)
	d := &Docker{Socket: dockerSocket, Netns: dockerNetns, tag: Unique()}
	// The client that came with the daemon, if any, rather than one that is before it in PATH.
	d.client = "/usr/bin/docker"
	if _, err := os.Stat(d.client); err != nil {
		d.client = Tool(t, "docker")
	}
	if d.alive(t) {
		return d
	}
	d.startDaemon(t)
	return d
}

// alive tells whether the daemon answers. It asks for the version, as `docker info` succeeds without a daemon too.
func (d *Docker) alive(t testing.TB) bool {
	if _, err := os.Stat(d.Socket); err != nil {
		return false
	}
	_, err := d.try(t, "", "version", "--format", "{{.Server.Version}}")
	return err == nil
}

func (d *Docker) startDaemon(t testing.TB) {
	t.Helper()
	dockerd := Tool(t, "dockerd")
	Tool(t, "containerd")
	lock, err := os.Open(dockerd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	if err := lockFile(lock, dockerWait); err != nil {
		t.Fatal(err)
	}
	cleanAbsent(t)

	dir := tempDir(t)
	t.Cleanup(func() { unmountBelow(t, dir) })
	bridge := Unique()
	Host().Bridge(t, bridge)
	Host().Addr(t, bridge, Subnet()+".1/24")
	cgroup := Unique()
	t.Cleanup(func() { removeCgroup(t, cgroup) })

	d.Socket, d.Netns = filepath.Join(dir, "docker.sock"), filepath.Join(dir, "exec", "netns")
	p := Start(t, exec.Command(dockerd,
		"--host", "unix://"+d.Socket, "--pidfile", filepath.Join(dir, "pid"), "--log-level", "warn",
		"--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", "/"+cgroup,
		"--bridge", bridge, "--iptables=false", "--ip-forward=false", "--ip-masq=false", "--userland-proxy=false"))
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("dockerd said:\n%s", p.Output())
		}
	})
	for end := time.Now().Add(dockerReady); !d.alive(t); time.Sleep(50 * time.Millisecond) {
		if !p.Running() || time.Now().After(end) {
			t.Fatal("dockerd does not answer")
		}
	}
}

// cleanAbsent removes at the end what a daemon creates outside its folders, unless it is there already.
func cleanAbsent(t testing.TB) {
	for _, path := range []string{"/etc/docker", "/etc/docker/key.json",
		"/run/docker", "/run/docker/plugins", "/run/containerd", "/run/containerd/s"} {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			t.Cleanup(func() { _ = os.Remove(path) }) // never more than an empty folder
		}
	}
}

// unmountBelow removes mounts that a daemon which did not end in order has left.
func unmountBelow(t testing.TB, dir string) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Error(err)
	}
	lines := strings.Split(string(mounts), "\n")
	slices.Reverse(lines)
	for _, line := range lines {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			_ = unix.Unmount(fields[4], unix.MNT_DETACH)
		}
	}
}

// removeCgroup removes a cgroup, of each hierarchy if there are several. Ended processes may be in it a moment longer.
func removeCgroup(t testing.TB, name string) {
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
	for _, dir := range append(dirs, "/sys/fs/cgroup/"+name) {
		err := os.Remove(dir)
		for end := time.Now().Add(stopTimeout); errors.Is(err, unix.EBUSY) && time.Now().Before(end); err = os.Remove(dir) {
			time.Sleep(20 * time.Millisecond)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
}

// try runs the client.
func (d *Docker) try(t testing.TB, stdin string, args ...string) (string, error) {
	t.Helper()
	out, err := Host().input(t, stdin, d.client, append([]string{"--host", "unix://" + d.Socket}, args...)...)
	return strings.TrimSpace(string(out)), err
}

// Do runs the client with the arguments, and returns what it prints.
func (d *Docker) Do(t testing.TB, args ...string) string {
	t.Helper()
	out, err := d.try(t, "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Image returns the name of an image that holds busybox and nothing else. It is made from the node's own, which has to be
// linked statically, so that no registry is needed.
func (d *Docker) Image(t testing.TB) string {
	t.Helper()
	if d.image != "" {
		return d.image
	}
	program, err := os.ReadFile(Tool(t, "busybox"))
	if err != nil {
		t.Fatal(err)
	}
	var root bytes.Buffer
	w := tar.NewWriter(&root)
	files := []tar.Header{
		{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(program))},
	}
	for _, applet := range []string{"sh", "sleep", "ip", "cat", "ls", "nc", "wget"} {
		files = append(files, tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox"})
	}
	for _, h := range files {
		err = errors.Join(err, w.WriteHeader(&h))
		if h.Size > 0 {
			_, writeErr := w.Write(program)
			err = errors.Join(err, writeErr)
		}
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	name := dockerImage + ":" + d.tag
	if _, err := d.try(t, root.String(), "import", "-", name); err != nil {
		t.Fatal(err)
	}
	d.image = name
	t.Cleanup(func() {
		d.image = ""
		if _, err := d.try(t, "", "rmi", name); err != nil {
			t.Error(err)
		}
	})
	return name
}

// Container is a container that runs until the test ends. Its NS is as the engine made it, with IPv6 as the engine wants it.
type Container struct {
	ID   string
	Name string // unique, and contains the name that the test gave
	Pid  int
	NS   *NS

	docker *Docker
}

// Run starts a container that sleeps. The arguments go to `docker run`; without any of --network it gets a namespace that
// holds loopback only, which a test can fill itself.
func (d *Docker) Run(t testing.TB, name string, args ...string) *Container {
	t.Helper()
	c := &Container{Name: "vt-" + name + "-" + Unique(), docker: d}
	run := []string{"run", "--detach", "--name", c.Name}
	if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--net") }) {
		run = append(run, "--network", "none")
	}
	run = append(append(run, args...), d.Image(t), "/bin/sleep", "1000000")
	t.Cleanup(func() {
		if _, err := d.try(t, "", "rm", "--force", "--volumes", c.Name); err != nil && !strings.Contains(err.Error(), "No such container") {
			t.Error(err)
		}
	})
	c.ID = d.Do(t, run...)
	state := strings.Fields(d.Do(t, "inspect", "--format", "{{.State.Pid}} {{.NetworkSettings.IPAddress}}", c.ID))
	var err error
	if c.Pid, err = strconv.Atoi(state[0]); err != nil || c.Pid == 0 {
		t.Fatalf("container %s has no process: %q", c.Name, state)
	}
	c.NS = &NS{Path: procPath(c.Pid), Pid: c.Pid}
	if len(state) > 1 {
		c.NS.IP = state[1]
	}
	if c.NS.Ino, err = inode(c.NS.Path); err != nil {
		t.Fatal(err)
	}
	return c
}

// Remove ends and removes the container before the test ends.
func (c *Container) Remove(t testing.TB) {
	t.Helper()
	c.docker.Do(t, "rm", "--force", "--volumes", c.ID)
}
