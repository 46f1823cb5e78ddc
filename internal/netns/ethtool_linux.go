package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/mdlayher/ethtool"
	"github.com/mdlayher/netlink"
	ioctl "github.com/safchain/ethtool"
)

// Offloads tells which features of a device are on, by the kernel's name, as tx-tcp-segmentation.
type Offloads struct {
	Device string
	active []byte   // a bit for each of names
	names  []string // of all features that this kernel knows
}

// On tells whether any of the features is on, and whether the kernel knows one of them at all.
func (o *Offloads) On(features ...string) (on, known bool) {
	for bit, name := range o.names {
		for _, feature := range features {
			if name == feature {
				known = true
				on = on || bit/8 < len(o.active) && o.active[bit/8]&(1<<(bit%8)) != 0
			}
		}
	}
	return on, known
}

// Hardware is what a physical device's driver tells. What it does not tell is nil or empty.
type Hardware struct {
	Device   string
	Driver   string
	Duplex   string
	Autoneg  string
	Rings    *ioctl.Ring
	Channels *ioctl.Channels
	Stats    map[string]uint64 // by the driver's names
}

const (
	genlCtrl           = 16 // GENL_ID_CTRL
	genlHeaderSize     = 4  // sizeof(struct genlmsghdr)
	ctrlGetFamily      = 3  // CTRL_CMD_GETFAMILY
	ctrlAttrFamilyID   = 1  // CTRL_ATTR_FAMILY_ID
	ctrlAttrFamilyName = 2  // CTRL_ATTR_FAMILY_NAME

	ethtoolStrsetGet   = 1  // enum of include/uapi/linux/ethtool_netlink.h
	ethtoolFeaturesGet = 11 // ETHTOOL_MSG_FEATURES_GET
	ethSSFeatures      = 4  // ETH_SS_FEATURES
	compactBitsets     = 1  // ETHTOOL_FLAG_COMPACT_BITSETS
	aHeader            = 1  // ETHTOOL_A_*_HEADER
	aHeaderIndex       = 1  // ETHTOOL_A_HEADER_DEV_INDEX
	aHeaderFlags       = 3  // ETHTOOL_A_HEADER_FLAGS
	aFeaturesActive    = 4  // ETHTOOL_A_FEATURES_ACTIVE
	aBitsetValue       = 4  // ETHTOOL_A_BITSET_VALUE
	maxFeatureBits     = 4096
)

// featureNames are the names of all features of this kernel, and the number of the ethtool family: both hold until the next
// boot.
type featureNames struct {
	family uint16
	names  []string
}

// genlRequest makes a message of generic netlink.
func genlRequest(family uint16, command uint8, flags netlink.HeaderFlags, encode func(*netlink.AttributeEncoder)) (netlink.Message, error) {
	ae := netlink.NewAttributeEncoder()
	encode(ae)
	attrs, err := ae.Encode()
	if err != nil {
		return netlink.Message{}, fmt.Errorf("netlink: %w", err)
	}
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(family), Flags: flags},
		Data:   append([]byte{command, 1, 0, 0}, attrs...),
	}, nil
}

// readFeatureNames asks for the ethtool family and the names of the features. Kernels before 5.6 have none.
func readFeatureNames(c *conn) (*featureNames, error) {
	f := &featureNames{}
	m, err := genlRequest(genlCtrl, ctrlGetFamily, 0, func(ae *netlink.AttributeEncoder) { ae.String(ctrlAttrFamilyName, "ethtool") })
	if err != nil {
		return nil, err
	}
	if err := c.request(m, func(_ uint16, data []byte) bool {
		if id := attribute(genlAttributes(data), ctrlAttrFamilyID); len(id) >= 2 {
			f.family = binary.NativeEndian.Uint16(id)
		}
		return true
	}); err != nil {
		return nil, fmt.Errorf("find ethtool: %w", err)
	}
	if f.family == 0 {
		return nil, fmt.Errorf("find ethtool: %w", ErrUnsupported)
	}
	m, err = genlRequest(f.family, ethtoolStrsetGet, 0, func(ae *netlink.AttributeEncoder) {
		ae.Nested(aHeader, func(*netlink.AttributeEncoder) error { return nil })
		ae.Nested(2, func(sets *netlink.AttributeEncoder) error { // ETHTOOL_A_STRSET_STRINGSETS
			sets.Nested(1, func(set *netlink.AttributeEncoder) error { // ETHTOOL_A_STRINGSETS_STRINGSET
				set.Uint32(1, ethSSFeatures) // ETHTOOL_A_STRINGSET_ID
				return nil
			})
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	if err := c.request(m, func(_ uint16, data []byte) bool {
		f.names = stringSet(genlAttributes(data))
		return true
	}); err != nil {
		return nil, fmt.Errorf("names of features: %w", err)
	}
	return f, nil
}

func genlAttributes(data []byte) []byte {
	if len(data) < genlHeaderSize {
		return nil
	}
	return data[genlHeaderSize:]
}

// stringSet reads the strings of the one set in an answer to ETHTOOL_MSG_STRSET_GET.
func stringSet(attrs []byte) []string {
	var names []string
	set := attribute(attribute(attrs, 2), 1)             // ETHTOOL_A_STRSET_STRINGSETS, ETHTOOL_A_STRINGSETS_STRINGSET
	each(attribute(set, 3), func(_ uint16, one []byte) { // ETHTOOL_A_STRINGSET_STRINGS
		index, value := attribute(one, 1), attribute(one, 2) // ETHTOOL_A_STRING_INDEX, ETHTOOL_A_STRING_VALUE
		if len(index) < 4 || binary.NativeEndian.Uint32(index) >= maxFeatureBits {
			return
		}
		at := int(binary.NativeEndian.Uint32(index))
		for len(names) <= at {
			names = append(names, "")
		}
		names[at] = strings.TrimRight(string(value), "\x00")
	})
	return names
}

// dumpOffloads reads the features of all devices of the connection's namespace that are in links, but for loopback.
func dumpOffloads(c *conn, f *featureNames, links []Link) ([]Offloads, error) {
	m, err := genlRequest(f.family, ethtoolFeaturesGet, netlink.Dump, func(ae *netlink.AttributeEncoder) {
		ae.Nested(aHeader, func(h *netlink.AttributeEncoder) error {
			h.Uint32(aHeaderFlags, compactBitsets)
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	var all []Offloads
	seen := map[int]bool{}
	err = c.request(m, func(_ uint16, data []byte) bool {
		attrs := genlAttributes(data)
		index := attribute(attribute(attrs, aHeader), aHeaderIndex)
		active := attribute(attribute(attrs, aFeaturesActive), aBitsetValue)
		if len(index) < 4 || active == nil {
			return true
		}
		at, ok := FindLink(links, int32(binary.NativeEndian.Uint32(index)))
		if ok && !seen[at] && links[at].Kind != KindLoopback {
			seen[at] = true
			all = append(all, Offloads{Device: links[at].Name, active: nativeBits(active), names: f.names})
		}
		return true
	})
	if err != nil && !errors.Is(err, errInterrupted) {
		return nil, fmt.Errorf("features: %w", err)
	}
	return all, nil
}

// nativeBits turns words of 32 bits in the machine's order into bytes of 8, lowest first.
func nativeBits(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for ; len(b) >= 4; b = b[4:] {
		out = binary.LittleEndian.AppendUint32(out, binary.NativeEndian.Uint32(b))
	}
	return out
}

// readHardware asks the drivers of the physical devices among links. A device whose driver answers nothing has only a name.
func readHardware(links []Link) ([]Hardware, error) {
	var all []Hardware
	var legacy *ioctl.Ethtool
	var modes *ethtool.Client
	defer func() {
		if legacy != nil {
			legacy.Close()
		}
		if modes != nil {
			modes.Close()
		}
	}()
	for i := range links {
		l := &links[i]
		if l.Kind != KindPhysical || strings.Contains(l.Name, ":") {
			continue
		}
		if legacy == nil {
			var err error
			if legacy, err = ioctl.NewEthtool(); err != nil {
				return nil, classify(fmt.Errorf("ethtool: %w", err))
			}
			modes, _ = ethtool.New() // fails before Linux 5.6
		}
		h := Hardware{Device: l.Name}
		if driver, err := legacy.DriverName(l.Name); err == nil {
			h.Driver = strings.ToValidUTF8(driver, "\uFFFD")
		}
		if rings, err := legacy.GetRing(l.Name); err == nil {
			h.Rings = &rings
		}
		if channels, err := legacy.GetChannels(l.Name); err == nil {
			h.Channels = &channels
		}
		if stats, err := legacy.Stats(l.Name); err == nil {
			h.Stats = stats
		}
		if modes != nil {
			if mode, err := modes.LinkMode(ethtool.Interface{Index: int(l.Index)}); err == nil {
				h.Duplex, h.Autoneg = mode.Duplex.String(), mode.Autoneg.String()
			}
		}
		all = append(all, h)
	}
	return all, nil
}
