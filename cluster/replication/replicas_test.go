package replication

import "testing"

func TestParsePeerName(t *testing.T) {
	if got := parsePeerName("Server name unknown at this time (peerID: abc12345)"); got != "#abc12345" {
		t.Errorf("a forgotten name is %q", got)
	}
}
