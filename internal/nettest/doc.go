// Package nettest makes throwaway network namespaces, causes faults of a known kind in them, and reads what other tools say
// about them, so that tests can compare. It is for tests only, and the one package besides its users' tests that runs other
// programs.
//
// All that a helper makes ends with the test, also with one that fails. Addresses come from 198.18.0.0/15, which is set aside
// for benchmarks, so that nothing here can reach or shadow a real network.
package nettest
