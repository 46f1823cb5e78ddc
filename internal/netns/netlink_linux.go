package netns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// netlinkTimeout bounds one request where the context sets no earlier end.
const netlinkTimeout = 5 * time.Second

// errInterrupted says that what a dump walked changed under it, so that an entry may be missing or there twice.
var errInterrupted = errors.New("netlink dump was interrupted by a change")

// conn is a netlink socket of the namespace that it was opened in. The library serves it but for the receiving: its own ends
// only at "done", which some kernel replies lack, allocates each message, and cannot be left half-way through a dump.
type conn struct {
	*netlink.Conn
	raw syscall.RawConn
	buf []byte
}

// dial opens a netlink socket in the namespace of this thread. The buffer, of 64 KiB or more, is lent to it.
func dial(family int, buf []byte) (*conn, error) {
	c, err := netlink.Dial(family, nil)
	if err != nil {
		return nil, classify(fmt.Errorf("open netlink socket: %w", err))
	}
	raw, err := c.SyscallConn()
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return &conn{Conn: c, raw: raw, buf: buf}, nil
}

// request sends one message and calls each with every message of the answer until it returns false. The data belong to the
// connection's buffer. After an early end the rest of the answer stays in the socket: close it. A dump that the kernel
// reports as interrupted is complete as far as it goes, and ends with errInterrupted.
func (c *conn) request(ctx context.Context, m netlink.Message, each func(typ uint16, data []byte) bool) error {
	deadline := time.Now().Add(netlinkTimeout)
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		deadline = end
	}
	if err := c.SetDeadline(deadline); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	m.Header.Flags |= netlink.Request
	sent, err := c.Send(m)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	interrupted := false
	for {
		datagram, err := c.receive()
		if err != nil {
			return err
		}
		end, err := messages(datagram, func(h unix.NlMsghdr, data []byte) (bool, error) {
			if h.Seq != sent.Header.Sequence {
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

// receive returns the next datagram, which belongs to the connection's buffer.
func (c *conn) receive() ([]byte, error) {
	var n int
	var err error
	if waitErr := c.raw.Read(func(fd uintptr) bool {
		n, err = receiveNow(int(fd), c.buf)
		return !errors.Is(err, unix.EAGAIN)
	}); waitErr != nil {
		return nil, fmt.Errorf("netlink receive: %w", waitErr)
	}
	if err != nil {
		return nil, fmt.Errorf("netlink receive: %w", err)
	}
	return c.buf[:n], nil
}

// poll returns the next datagram, or none if nothing waits.
func (c *conn) poll() ([]byte, error) {
	var n int
	var err error
	if ctlErr := c.raw.Control(func(fd uintptr) { n, err = receiveNow(int(fd), c.buf) }); ctlErr != nil {
		return nil, fmt.Errorf("netlink receive: %w", ctlErr)
	}
	if errors.Is(err, unix.EAGAIN) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("netlink receive: %w", err)
	}
	return c.buf[:n], nil
}

// receiveNow reads one datagram without waiting for it.
func receiveNow(fd int, buf []byte) (int, error) {
	for {
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n > len(buf) {
			return 0, unix.EMSGSIZE
		}
		return n, err
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
		return classifyNetlink(syscall.Errno(-code))
	}
	return nil
}

// classifyNetlink is classify for what netlink answers, where EINVAL and the like mean a feature that is not there.
func classifyNetlink(errno syscall.Errno) error {
	err := fmt.Errorf("netlink: %w", errno)
	switch errno {
	case unix.EPERM, unix.EACCES:
		return fmt.Errorf("%w: %w", ErrDenied, err)
	case unix.EINVAL, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.ENOENT:
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return err
}
