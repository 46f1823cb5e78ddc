package netns

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

var (
	// ErrGone says that a namespace ended, or that another took its place, before or while it was read.
	ErrGone = errors.New("network namespace is gone")
	// ErrDenied says that the kernel refused for want of a capability.
	ErrDenied = errors.New("permission denied")
	// ErrUnsupported says that this kernel, as configured and loaded, does not have what was asked for.
	ErrUnsupported = errors.New("not supported by this kernel")
	// ErrParse says that what the kernel answered was not understood.
	ErrParse = errors.New("not understood")
	// ErrStranded says that a thread could not return to its own namespace. It must never run other code:
	// the goroutine that holds it has to end without unlocking it.
	ErrStranded = errors.New("thread could not return to its own network namespace")
)

// nsGetID is the NS_GET_ID ioctl of include/uapi/linux/nsfs.h, answered by Linux 6.18 and later.
const nsGetID = 2<<30 | 8<<16 | 0xb7<<8 | 13

// Key is the device and inode of a namespace on nsfs. Only namespaces that live at the same time have different keys: the
// kernel hands an inode out again as soon as its namespace is gone.
type Key struct {
	Dev, Ino uint64
}

// Do runs fn on a thread of its own inside the network namespace that path leads to, and returns fn's error. The path is a
// bind mount such as /run/netns/NAME, or /proc/PID/ns/net. Sockets that fn opens stay in that namespace when Do has
// returned. The thread ends with the call, so that nothing else ever runs on it.
func Do(path string, fn func() error) error {
	result := make(chan error, 1)
	OnThread(func() {
		fd, err := openNS(path)
		if err != nil {
			result <- err
			return
		}
		err = unix.Setns(fd, unix.CLONE_NEWNET)
		unix.Close(fd)
		if err != nil {
			result <- classify(fmt.Errorf("enter %s: %w", path, err))
			return
		}
		result <- fn()
	})
	return <-result
}

// OnThread runs fn in a new goroutine on an OS thread of its own, which ends with fn. It is never the thread group leader:
// that one cannot end, and everything that reads /proc/self/net sees the leader's namespace.
func OnThread(fn func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			fn()
			return
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			fn()
		}()
		<-done
		runtime.UnlockOSThread()
	}()
}

// visit runs fn inside the namespace of fd and comes back to home. It must run on a locked thread. An error that
// wraps ErrStranded obliges the caller to end that thread.
func visit(home, fd int, fn func()) error {
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return classify(fmt.Errorf("setns: %w", err))
	}
	fn()
	if err := unix.Setns(home, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("%w: %w", ErrStranded, err)
	}
	return nil
}

// openNS opens a namespace file. It never blocks, whatever the path turns out to be.
func openNS(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, classify(fmt.Errorf("open %s: %w", path, err))
	}
	return fd, nil
}

// keyOf returns the key of an open namespace.
func keyOf(fd int) (Key, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Key{}, fmt.Errorf("stat namespace: %w", err)
	}
	return Key{Dev: st.Dev, Ino: st.Ino}, nil
}

// isNetwork tells whether a file on nsfs is a network namespace, or cannot be opened to see.
func isNetwork(path string) bool {
	fd, err := openNS(path)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	return err != nil || kind == unix.CLONE_NEWNET
}

// cookieOf returns the cookie of the namespace of fd, which no other namespace gets until the next boot, or 0 where this
// kernel does not tell it without entering.
func cookieOf(fd int) uint64 {
	var id uint64
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), nsGetID, uintptr(unsafe.Pointer(&id))); errno != 0 {
		return 0
	}
	return id
}

// socketCookie returns the cookie of the namespace that a new socket of this thread belongs to, or 0 on kernels older than
// 5.14, which do not tell it.
func socketCookie() uint64 {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return cookie
}

// classify adds ErrGone or ErrDenied to an error of the kernel that means it.
func classify(err error) error {
	for _, gone := range []error{unix.ENOENT, unix.ESRCH, unix.EINVAL, unix.ENODEV, unix.EIO, unix.ENOTDIR} {
		if errors.Is(err, gone) {
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%w: %w", ErrDenied, err)
	}
	return err
}
