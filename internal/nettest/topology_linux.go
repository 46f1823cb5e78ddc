package nettest

import (
	"fmt"
	"os"
	"testing"
)

// Subnet returns the first three numbers of a network of 256 addresses that the test may use, such as "198.18.7".
func Subnet() string {
	// Packages are tested at the same time, and all may put addresses into the host's namespace: start in different places.
	n := (uint32(os.Getpid())*37 + serial.Add(1)) % 512
	return fmt.Sprintf("198.%d.%d", 18+n/256, n%256)
}

// Connect joins two namespaces by a pair of devices in a network of their own, and returns the address of each end.
func Connect(t testing.TB, a *NS, aDev string, b *NS, bDev string, opts ...VethOption) (aIP, bIP string) {
	t.Helper()
	Veth(t, a, aDev, b, bDev, opts...)
	subnet := Subnet()
	a.Addr(t, aDev, subnet+".1/24")
	b.Addr(t, bDev, subnet+".2/24")
	return subnet + ".1", subnet + ".2"
}

// Pair makes two namespaces, joined by eth0 of each.
//
//	a eth0 ---- eth0 b
func Pair(t testing.TB) (a, b *NS) {
	t.Helper()
	a, b = New(t), New(t)
	Connect(t, a, "eth0", b, "eth0")
	return a, b
}

// Routed makes three namespaces, of which r forwards between the others.
//
//	a eth0 ---- eth0 r eth1 ---- eth0 b
func Routed(t testing.TB) (a, r, b *NS) {
	t.Helper()
	a, r, b = New(t), New(t), New(t)
	_, left := Connect(t, a, "eth0", r, "eth0")
	right, _ := Connect(t, r, "eth1", b, "eth0")
	r.Sysctl(t, "net.ipv4.ip_forward", "1")
	a.Route(t, "default", left)
	b.Route(t, "default", right)
	return a, r, b
}
