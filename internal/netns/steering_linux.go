package netns

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Steering is how one device spreads its packets over CPUs.
type Steering struct {
	Device   string
	Kind     string
	Receive  []ReceiveQueue
	Transmit []CPUMask // of each transmit queue; empty where the device has one only, which needs none
}

// ReceiveQueue is one queue rx-N of a device.
type ReceiveQueue struct {
	RPS         CPUMask // the CPUs that RPS hands packets to; none means that RPS is off
	FlowEntries uint64  // size of its RFS table
}

// CPUMask is a set of CPUs as sysfs prints it: hexadecimal words of 32 bits, highest first.
type CPUMask string

// words returns the mask's words, lowest CPUs first.
func (m CPUMask) words() ([]uint32, error) {
	parts := strings.Split(string(m), ",")
	words := make([]uint32, len(parts))
	for i, part := range parts {
		word, err := strconv.ParseUint(part, 16, 32)
		if err != nil {
			return nil, fmt.Errorf("CPU mask %.80q: %w", m, err)
		}
		words[len(parts)-1-i] = uint32(word)
	}
	return words, nil
}

// Count returns how many CPUs are in m, and how many of them are not in online.
func (m CPUMask) Count(online map[int]bool) (cpus, offline int, err error) {
	words, err := m.words()
	if err != nil {
		return 0, 0, err
	}
	for i, word := range words {
		cpus += bits.OnesCount32(word)
		for bit := range 32 {
			if word&(1<<bit) != 0 && !online[32*i+bit] {
				offline++
			}
		}
	}
	return cpus, offline, nil
}

// maxQueues bounds the queues of one device that are looked at.
const maxQueues = 1024

// readSteering reads the queues of links from the sysfs that root leads to. A device that vanished meanwhile is left out.
func readSteering(root int, links []Link, buf []byte) ([]Steering, error) {
	var all []Steering
	for i := range links {
		l := &links[i]
		if l.Kind == KindLoopback || strings.Contains(l.Name, ":") {
			continue // a name that had to be changed is not sysfs's
		}
		s := Steering{Device: l.Name, Kind: l.Kind}
		folder := "class/net/" + l.Name + "/queues/"
		for queue := range min(int(l.ReceiveQueues), maxQueues) {
			prefix := folder + "rx-" + strconv.Itoa(queue)
			mask, err := readFile(root, prefix+"/rps_cpus", buf[:0])
			if vanished(err) {
				break // beyond the queues in use, or the device is gone
			}
			if err != nil {
				return nil, err
			}
			q := ReceiveQueue{RPS: CPUMask(bytes.TrimSpace(mask))}
			flows, err := readFile(root, prefix+"/rps_flow_cnt", buf[:0])
			if err == nil {
				q.FlowEntries, err = strconv.ParseUint(string(bytes.TrimSpace(flows)), 10, 64)
			}
			if err != nil && !vanished(err) {
				return nil, fmt.Errorf("%s/rps_flow_cnt: %w", prefix, err)
			}
			s.Receive = append(s.Receive, q)
		}
		for queue := 0; l.TransmitQueues > 1 && queue < min(int(l.TransmitQueues), maxQueues); queue++ {
			mask, err := readFile(root, folder+"tx-"+strconv.Itoa(queue)+"/xps_cpus", buf[:0])
			if err != nil {
				break // not a device that takes a mask, or beyond the queues in use
			}
			s.Transmit = append(s.Transmit, CPUMask(bytes.TrimSpace(mask)))
		}
		if len(s.Receive) > 0 {
			all = append(all, s)
		}
	}
	return all, nil
}

func vanished(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, ErrGone) }

// mountSysfs returns a descriptor of a detached sysfs that shows the devices of this thread's namespace. It does not keep
// the namespace alive: once that ends, reads fail.
func mountSysfs() (int, error) {
	context, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, classifyMount("fsopen", err)
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return -1, classifyMount("fsconfig", err)
	}
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return -1, classifyMount("fsmount", err)
	}
	return fd, nil
}

func classifyMount(call string, err error) error {
	err = fmt.Errorf("mount sysfs: %s: %w", call, err)
	if errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("%w: %w", ErrUnsupported, err) // before Linux 5.2
	}
	return classify(err)
}

// parseCPUs reads a list of CPUs such as 0-3,8.
func parseCPUs(b []byte) (map[int]bool, error) {
	cpus := map[int]bool{}
	for part := range strings.SplitSeq(strings.TrimSpace(string(b)), ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		to := from
		if err == nil && isRange {
			to, err = strconv.Atoi(last)
		}
		if err != nil || from < 0 || to < from || to > 1<<16 {
			return nil, fmt.Errorf("list of CPUs %.80q", b)
		}
		for cpu := from; cpu <= to; cpu++ {
			cpus[cpu] = true
		}
	}
	return cpus, nil
}
