package nettest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// TestMain fails if the tests leave anything behind on the node.
func TestMain(m *testing.M) {
	before := leftovers()
	code := m.Run()
	var more []string
	for range 100 { // the kernel takes namespaces down in its own time
		more = slices.DeleteFunc(slices.Sorted(maps.Keys(leftovers())), func(s string) bool { return before[s] })
		if len(more) == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if len(more) > 0 && os.Getuid() == 0 {
		fmt.Printf("left behind:\n%s\n", strings.Join(more, "\n"))
		code = 1
	}
	os.Exit(code)
}

// leftovers lists what this process has on the node: devices in the host's namespace, mounts, files, cgroups, children. Those
// of other packages, which are tested at the same time, have other names.
func leftovers() map[string]bool {
	found := map[string]bool{}
	links, _ := netlink.LinkList()
	for _, l := range links {
		if name := l.Attrs().Name; strings.HasPrefix(name, uniquePrefix()) {
			found["device "+name] = true
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.Contains(fields[4], "/"+uniquePrefix()) {
			found["mount "+fields[4]] = true
		}
	}
	for _, pattern := range []string{os.TempDir() + "/", "/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		files, _ := filepath.Glob(pattern + uniquePrefix() + "*")
		for _, file := range files {
			found["file "+file] = true
		}
	}
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, task := range tasks {
		children, _ := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		for _, pid := range strings.Fields(string(children)) {
			cmdline, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			found["process "+pid+" "+string(cmdline)] = true
		}
	}
	return found
}
