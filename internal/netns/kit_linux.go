package netns

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// kit is what may be kept of a namespace between visits, as it does not keep the namespace alive: once that ends, reading
// through it fails. Finding these folders anew costs the kernel many times what reading a file in them costs, for sysctls
// even time that grows with the number of namespaces.
type kit struct {
	sysfs   int            // descriptor of a detached sysfs, -1 while there is none
	sysctls map[string]int // descriptors of folders below /proc/sys/net
	used    int            // number of the scrape that used it last
}

const (
	// maxKits bounds the kits that are kept, each with a few descriptors.
	maxKits = 4096
	// descriptorsPerKit is how many of those that the process may have are reckoned for each, with as many to spare for
	// other visitors and for everything else.
	descriptorsPerKit = 16
)

// keepable returns how many kits the limit on descriptors allows.
func keepable() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(limit.Cur/descriptorsPerKit, maxKits))
}

func (k *kit) close() {
	if k.sysfs >= 0 {
		unix.Close(k.sysfs)
	}
	for _, fd := range k.sysctls {
		unix.Close(fd)
	}
}

// kit returns the kit of the namespace that the thread is in. Without a cookie, or with too many kept, it lasts for the visit.
func (v *Visitor) kit(view *View) *kit {
	if k := v.kits[view.Cookie]; k != nil {
		k.used = v.scrape
		return k
	}
	if v.lent == nil {
		k := &kit{sysfs: -1, sysctls: map[string]int{}, used: v.scrape}
		if view.Cookie != 0 && len(v.kits) < v.maxKits {
			v.kits[view.Cookie] = k
			return k
		}
		v.lent = k
	}
	return v.lent
}

// NextScrape gives back what is kept for namespaces that the last two scrapes did not meet.
func (v *Visitor) NextScrape() {
	v.scrape++
	v.online = nil
	for cookie, k := range v.kits {
		if v.scrape-k.used > 2 {
			k.close()
			delete(v.kits, cookie)
		}
	}
}

// sysctlFolder returns the descriptor of a folder below /proc/sys/net of the namespace that the thread is in.
func (v *Visitor) sysctlFolder(view *View, folder string) (int, error) {
	k := v.kit(view)
	fd, ok := k.sysctls[folder]
	if !ok {
		var err error
		fd, err = unix.Open(v.proc+"/sys/net/"+folder, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			return -1, fmt.Errorf("sysctl net/%s: %w", folder, ErrUnsupported)
		}
		if err != nil {
			return -1, classify(fmt.Errorf("open sysctl net/%s: %w", folder, err))
		}
		k.sysctls[folder] = fd
	}
	return fd, nil
}

// onlineCPUs reads once per scrape which CPUs are online.
func (v *Visitor) onlineCPUs() (map[int]bool, error) {
	if v.online == nil {
		b, err := readFile(unix.AT_FDCWD, v.sys+"/devices/system/cpu/online", nil)
		if err != nil {
			return nil, err
		}
		if v.online, err = parseCPUs(b); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrParse, err)
		}
	}
	return v.online, nil
}

// readSteering reads how the devices of the namespace that the thread is in spread their packets.
func (v *Visitor) readSteering(view *View) ([]Steering, error) {
	links, _, err := view.Links()
	if err != nil {
		return nil, err
	}
	k := v.kit(view)
	if k.sysfs < 0 {
		k.sysfs, err = mountSysfs()
		if errors.Is(err, ErrDenied) && view.Namespace.Host {
			k.sysfs, err = v.openSysfs(links)
		}
		if err != nil {
			return nil, err
		}
	}
	return readSteering(k.sysfs, links, v.buf)
}

// openSysfs opens the node's sysfs, if it shows these devices and not those of another namespace.
func (v *Visitor) openSysfs(links []Link) (int, error) {
	fd, err := unix.Open(v.sys, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, classify(fmt.Errorf("open sysfs: %w", err))
	}
	for i := range links {
		index, err := readFile(fd, "class/net/"+links[i].Name+"/ifindex", nil)
		if err != nil || strings.TrimSpace(string(index)) != strconv.Itoa(int(links[i].Index)) {
			unix.Close(fd)
			return -1, fmt.Errorf("%s shows another namespace: %w", v.sys, ErrDenied)
		}
	}
	return fd, nil
}
