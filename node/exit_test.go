package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/node/config"
)

// A node with damaged JetStream data exits with the code after which no supervisor restarts
// it, and names the command that replaces it.
func TestHaltOf_Damaged(t *testing.T) {
	cfg := config.Config{Node: config.Node{Name: "n2", DataDir: "/data"}, Cluster: config.Cluster{Members: []config.Member{{Name: "n2"}}}}
	for _, err := range []error{
		fmt.Errorf("start NATS: %w", embedded.ErrDamaged),
		fmt.Errorf("%w: RAFT [yrzKKRBu - S-R3F-a] Snapshot corrupt", embedded.ErrDamaged),
	} {
		var halt *ExitError
		if !errors.As(exitError(err, &cfg), &halt) || halt.Code != ExitDamaged || !strings.HasSuffix(halt.Error(), "'yardmaster cluster replace n2'") {
			t.Errorf("%v: %v", err, exitError(err, &cfg))
		}
	}
}

// An error of consensus ends the process with the code and the remedy for its kind.
func TestExitReason(t *testing.T) {
	for _, c := range []struct {
		err    error
		code   int
		remedy string
	}{
		{&consensus.DamagedError{Node: "n2", Err: errors.New("x")}, ExitDamaged, "cluster replace n2"},
		{&consensus.ReleaseError{Node: "n2", Err: errors.New("x")}, ExitRelease, "start it with the release"},
		{errors.New("no space left on device"), ExitDisk, "free space in /data"},
	} {
		if code, err := exitReason(c.err, "/data"); code != c.code || !strings.Contains(err.Error(), c.remedy) {
			t.Errorf("%T: exit code %d, %v; want %d and %q", c.err, code, err, c.code, c.remedy)
		}
	}
}
