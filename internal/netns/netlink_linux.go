package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// netlinkTimeout bounds the wait for a part of an answer. The kernel has it ready when the request returns; a longer wait
// means that it will not come.
const netlinkTimeout = time.Second

// errInterrupted says that what a dump walked changed under it, so that an entry may be missing or there twice.
var errInterrupted = errors.New("netlink dump was interrupted by a change")

// conn is a netlink socket of the namespace that it was opened in. The library makes and decodes its messages. Its own
// connections cost more than the kernel's work for so few messages: they register with the runtime's poller and seed a
// random generator each. Nor do they end at an answer without "done", or half-way through a dump.
type conn struct {
	fd  int
	seq uint32
	buf []byte
}

// dial opens a netlink socket in the namespace of this thread, which hears of the groups (a bit for each). The buffer, of
// 64 KiB or more, is lent to it.
func dial(family int, groups uint32, buf []byte) (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if err != nil {
		return nil, classifyNetlink("open socket", err)
	}
	c := &conn{fd: fd, buf: buf}
	timeout := unix.NsecToTimeval(netlinkTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		c.close()
		return nil, classifyNetlink("set timeout", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		c.close()
		return nil, classifyNetlink("bind socket", err)
	}
	return c, nil
}

func (c *conn) close() { unix.Close(c.fd) }

// request sends one message and calls each with every message of the answer until it returns false. The data belong to the
// connection's buffer. After an early end the rest of the answer stays in the socket: close it. A dump that the kernel
// reports as interrupted is complete as far as it goes, and ends with errInterrupted.
func (c *conn) request(m netlink.Message, each func(typ uint16, data []byte) bool) error {
	c.seq++
	m.Header.Sequence = c.seq
	m.Header.Flags |= netlink.Request
	m.Header.Length = uint32(unix.SizeofNlMsghdr + len(m.Data))
	b, err := m.MarshalBinary()
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	if err := unix.Sendto(c.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return classifyNetlink("send", err)
	}
	interrupted := false
	for {
		datagram, err := c.receive(0)
		if err != nil {
			return classifyNetlink("receive", err)
		}
		end, err := messages(datagram, func(h unix.NlMsghdr, data []byte) (bool, error) {
			if h.Seq != c.seq {
				return false, nil
			}
			interrupted = interrupted || h.Flags&unix.NLM_F_DUMP_INTR != 0
			switch h.Type {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				return true, errnoOf(data)
			}
			// An answer to a plain request is one message, even where the kernel marks it as a part of many.
			return !each(h.Type, data) || m.Header.Flags&netlink.Dump != netlink.Dump, nil
		})
		if err != nil {
			return err
		}
		if end {
			break
		}
	}
	if interrupted {
		return errInterrupted
	}
	return nil
}

// receive returns the next datagram, which belongs to the connection's buffer. With MSG_DONTWAIT it gives EAGAIN if none
// waits.
func (c *conn) receive(flags int) ([]byte, error) {
	for {
		n, _, err := unix.Recvfrom(c.fd, c.buf, flags|unix.MSG_TRUNC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n > len(c.buf) {
			return nil, unix.EMSGSIZE
		}
		return c.buf[:n], nil
	}
}

// messages walks the netlink messages of a datagram until each says that it has seen the last one.
func messages(b []byte, each func(h unix.NlMsghdr, data []byte) (bool, error)) (bool, error) {
	for len(b) >= unix.SizeofNlMsghdr {
		h := unix.NlMsghdr{
			Len:   binary.NativeEndian.Uint32(b),
			Type:  binary.NativeEndian.Uint16(b[4:]),
			Flags: binary.NativeEndian.Uint16(b[6:]),
			Seq:   binary.NativeEndian.Uint32(b[8:]),
		}
		if h.Len < unix.SizeofNlMsghdr || int64(h.Len) > int64(len(b)) {
			return false, fmt.Errorf("netlink message of %d bytes in %d", h.Len, len(b))
		}
		if end, err := each(h, b[unix.SizeofNlMsghdr:h.Len]); end || err != nil {
			return end, err
		}
		b = b[min((int(h.Len)+3)&^3, len(b)):]
	}
	return false, nil
}

// errnoOf returns the error that a "done" or "error" message carries.
func errnoOf(data []byte) error {
	if len(data) < 4 {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(data)); code < 0 {
		return classifyNetlink("answer", syscall.Errno(-code))
	}
	return nil
}

// classifyNetlink is classify for what netlink answers, where EINVAL and the like mean a feature that is not there.
func classifyNetlink(what string, errno error) error {
	err := fmt.Errorf("netlink: %s: %w", what, errno)
	if errors.Is(errno, unix.EPERM) || errors.Is(errno, unix.EACCES) {
		return fmt.Errorf("%w: %w", ErrDenied, err)
	}
	for _, absent := range []error{unix.EINVAL, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.ENOENT} {
		if errors.Is(errno, absent) {
			return fmt.Errorf("%w: %w", ErrUnsupported, err)
		}
	}
	return err
}
