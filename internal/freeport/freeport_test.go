package freeport

import (
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestAddresses(t *testing.T) {
	seen := map[string]bool{}
	for range 40 {
		free, err := Addresses(10)
		if err != nil {
			t.Fatal(err)
		}
		for _, address := range free {
			if seen[address] {
				t.Fatalf("%s was returned twice", address)
			}
			seen[address] = true
		}
	}
	for range 110 { // more than the block has left
		free, err := Addresses(1)
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", free[0])
		if err != nil {
			t.Fatalf("%s is not free: %v", free[0], err)
		}
		defer l.Close()
	}
	if free, err := Addresses(blockSize); err == nil {
		t.Fatalf("a block of %d ports gave %d", blockSize, len(free))
	}
}

// Processes never receive the same address.
func TestAddresses_OtherProcess(t *testing.T) {
	const child = "FREEPORT_TEST_CHILD"
	own, err := Addresses(20)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(child) != "" {
		if _, err := os.Stdout.WriteString(strings.Join(own, "\n") + "\n"); err != nil {
			t.Fatal(err)
		}
		return
	}
	for range 5 {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestAddresses_OtherProcess$")
		cmd.Env = append(os.Environ(), child+"=1")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		lines := strings.Fields(string(out))
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, "127.0.0.1:") }) {
			t.Fatalf("the child printed no address: %s", out)
		}
		for _, line := range lines {
			if slices.Contains(own, line) {
				t.Errorf("%s was returned to both processes", line)
			}
		}
	}
}
