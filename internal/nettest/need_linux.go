package nettest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// requireEnv set to 1 turns the skips of this package into failures: where the kernel tests have to run, a missing
// capability or tool must not pass for success.
const requireEnv = "VETHEXPORTER_REQUIRE_ROOT"

// Root skips the test unless it may make and enter network namespaces.
func Root(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		lacking(t, "needs root")
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatalf("capget: %v", err)
	}
	if data[0].Effective&(1<<unix.CAP_SYS_ADMIN) == 0 {
		lacking(t, "needs CAP_SYS_ADMIN")
	}
}

// Tool returns the path of a program, and skips the test if it is not installed.
func Tool(t testing.TB, name string) string {
	t.Helper()
	path, err := findTool(name)
	if err != nil {
		lacking(t, "needs the program "+name)
	}
	return path
}

// findTool also looks where administrators' programs are, which a user's PATH may not name.
func findTool(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", err
}

// serial numbers what this process makes.
var serial atomic.Uint32

// Unique returns a name that no other test has, also of a package that is tested at the same time. It is fit for a device in
// the host's namespace.
func Unique() string { return fmt.Sprintf("%s%07x", uniquePrefix(), serial.Add(1)&0xfffffff) }

func uniquePrefix() string { return fmt.Sprintf("vt%06x", os.Getpid()) }

// tempDir returns a folder whose path is shorter than that of t.TempDir, as the names of sockets are limited.
func tempDir(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(os.TempDir(), Unique())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func lacking(t testing.TB, what string) {
	t.Helper()
	if os.Getenv(requireEnv) == "1" {
		t.Fatalf("%s, and %s=1 forbids to skip", what, requireEnv)
	}
	t.Skip(what)
}
