package nodetest_test

import (
	"fmt"
	"hash/fnv"
	"net"
	"testing"
	"time"

	"yardmaster/internal/dialogue"
	"yardmaster/internal/nodetest"
)

// conversations plays the edge's conversations against the yard: all that do
// not need a clock or a config of their own. The speakers a, b and c of one
// conversation are at different nodes.
func conversations(t *testing.T, y *nodetest.Yard) {
	scripts, err := dialogue.Load("../../edge/testdata/conversations")
	if err != nil {
		t.Fatal(err)
	}
	run := fmt.Sprintf("-%x", time.Now().UnixNano())
	for i, s := range scripts {
		if s.NeedsWorld() != "" {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			_, err := s.Play(dialogue.World{
				Dial: func(speaker string) (net.Conn, error) {
					return net.Dial("tcp", memberOf(y, speaker).Node().Addresses().Overhop)
				},
				Patience: 30 * time.Second, Unique: fmt.Sprintf("%s-%d", run, i),
				Known: func(queue string) error {
					y.Eventually("queue "+queue+" is known everywhere", func() error { return known(y, queue) })
					return nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// memberOf puts a, b and c on the first three members, others anywhere.
func memberOf(y *nodetest.Yard, speaker string) *nodetest.Member {
	if len(speaker) == 1 {
		return y.Members[int(speaker[0]-'a')%len(y.Members)]
	}
	sum := fnv.New32()
	sum.Write([]byte(speaker))
	return y.Members[int(sum.Sum32()%uint32(len(y.Members)))]
}

func known(y *nodetest.Yard, queue string) error {
	for _, m := range y.Running() {
		if _, ok := m.Node().Ledger().Queue(queue); !ok {
			return fmt.Errorf("%s does not know it", m.Name)
		}
	}
	return nil
}
