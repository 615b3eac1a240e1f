// Package testnet gives tests addresses on 127.0.0.1 that stay free until the test
// listens on them, and again while what listens there is stopped.
package testnet

import (
	"net"
	"testing"

	"github.com/yardmaster-dev/yardmaster/internal/freeport"
)

// Addresses returns n free addresses.
func Addresses(t testing.TB, n int) []string {
	t.Helper()
	free, err := freeport.Addresses(n)
	if err != nil {
		t.Fatal(err)
	}
	return free
}

// Address returns one free address.
func Address(t testing.TB) string {
	t.Helper()
	return Addresses(t, 1)[0]
}

// Listen listens on an address that can be listened on again after the listener is
// closed. The caller closes it.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", Address(t))
	if err != nil {
		t.Fatal(err)
	}
	return ln
}
