package cluster

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// copyOf reads a node's copy of a lane.
func copyOf(t *testing.T, c *Cluster, stream string) (sums map[uint64]uint64, damaged int) {
	t.Helper()
	sums = map[uint64]uint64{}
	damaged, err := c.WalkCopy(stream, 1, 1<<60, func(int) error { return nil }, func(seq, sum uint64) { sums[seq] = sum })
	if err != nil {
		t.Fatal(err)
	}
	return sums, damaged
}

// What is on the disks of three members is the same; a bit that is turned there
// is found while the server still answers out of its memory.
func TestOwnCopies(t *testing.T) {
	nodes := yard(t)
	const jobs = 300
	for i := range jobs {
		if _, err := nodes[0].PublishWait(within(t, 10*time.Second), "mail", fmt.Sprintf("k%d", i), time.Now(), body(i)); err != nil {
			t.Fatal(err)
		}
	}
	stream := LaneStream(0)
	eventually(t, "all copies to be alike", func() error {
		first, _ := copyOf(t, nodes[0].Cluster, stream)
		if len(first) != jobs {
			return fmt.Errorf("%d messages of %d", len(first), jobs)
		}
		for _, n := range nodes[1:] {
			if other, _ := copyOf(t, n.Cluster, stream); !maps.Equal(first, other) {
				return fmt.Errorf("%s has %d messages, or others", n.Node(), len(other))
			}
		}
		return nil
	})
	blocks, err := blocksOf(filepath.Join(nodes[1].streamDir(stream), "msgs"))
	if err != nil || len(blocks) != 1 {
		t.Fatalf("blocks %v, %v", blocks, err)
	}
	whole, err := os.ReadFile(blocks[0].path)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := newRecordReader(stream, blocks[0].number)
	if err != nil {
		t.Fatal(err)
	}
	var at []int // where each record begins
	for i := 0; i < len(whole); {
		_, _, size := reader.next(whole[i:])
		at, i = append(at, i), i+size
	}
	// A length, a sequence, a time, a subject's length, data, and a hash.
	for n, offset := range []int{0, 4, 12, 20, 60, at[1] - 1} {
		text := slices.Clone(whole)
		text[at[10*n]+offset] ^= 4
		if err := os.WriteFile(blocks[0].path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		sums, damaged := copyOf(t, nodes[1].Cluster, stream)
		if _, there := sums[uint64(10*n+1)]; there || damaged != 1 || len(sums) != jobs-1 {
			t.Errorf("byte %d of record %d: %d messages, %d places damaged", offset, 10*n, len(sums), damaged)
		}
	}
	if err := os.WriteFile(blocks[0].path, whole[:at[jobs-20]+7], 0o600); err != nil {
		t.Fatal(err)
	}
	if sums, damaged := copyOf(t, nodes[1].Cluster, stream); len(sums) != jobs-20 || damaged != 1 {
		t.Errorf("cut short: %d messages, %d places damaged", len(sums), damaged)
	}
	rebuilds(t, nodes[1], nodes[0], stream, jobs)
}

// rebuilds removes a copy, whose node leads the stream or not, and has it filled.
func rebuilds(t *testing.T, bad, other *running, stream string, messages int) {
	t.Helper()
	group, err := bad.CopyGroup(stream)
	if err != nil || group == "" {
		t.Fatalf("group %q, %v", group, err)
	}
	if err := bad.RemoveCopy(stream, group); err == nil {
		t.Fatal("a copy is removed below a server that uses it")
	}
	if err := bad.CloseStreams(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the others to do without", func() error {
		why, leads, err := other.Spares(t.Context(), stream, bad.Node())
		if err == nil && (why != "" || leads) {
			err = fmt.Errorf("%s, leads %v", why, leads)
		}
		return err
	})
	if err := bad.RemoveCopy(stream, group); err != nil {
		t.Fatal(err)
	}
	bad.kill()
	again := run(t, bad.cfg)
	eventually(t, "the copy to be filled", func() error {
		if why, err := again.Follows(t.Context(), stream); err != nil || why != "" {
			return fmt.Errorf("%s: %v", why, err)
		}
		if sums, damaged := copyOf(t, again.Cluster, stream); len(sums) != messages || damaged > 0 {
			return fmt.Errorf("%d messages, %d places damaged", len(sums), damaged)
		}
		return nil
	})
}
