package clustertest_test

import (
	"fmt"
	"hash/fnv"
	"net"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/clustertest"
	"github.com/yardmaster-dev/yardmaster/test/wirescript"
)

// wireScripts runs the conversations of package edge against the cluster, except those that
// need a clock or a config. The clients a, b and c are at different nodes.
func wireScripts(t *testing.T, cl *clustertest.Cluster) {
	scripts, err := wirescript.Load("../../edge/testdata/conversations")
	if err != nil {
		t.Fatal(err)
	}
	run := fmt.Sprintf("-%x", time.Now().UnixNano())
	for i, s := range scripts {
		if s.NeedsEnv() != "" {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			_, err := s.Run(wirescript.Env{
				Dial: func(speaker string) (net.Conn, error) {
					return net.Dial("tcp", memberForClient(cl, speaker).Node().Addresses().Overhop)
				},
				Timeout: time.Minute, Suffix: fmt.Sprintf("%s-%d", run, i),
				AwaitQueue: func(queue string) error {
					cl.Eventually("queue "+queue+" is known everywhere", func() error { return queueKnown(cl, queue) })
					return nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// memberForClient returns the first three members for a, b and c, and any for others.
func memberForClient(cl *clustertest.Cluster, speaker string) *clustertest.Member {
	if len(speaker) == 1 {
		return cl.Members[int(speaker[0]-'a')%len(cl.Members)]
	}
	sum := fnv.New32()
	sum.Write([]byte(speaker))
	return cl.Members[int(sum.Sum32()%uint32(len(cl.Members)))]
}

func queueKnown(cl *clustertest.Cluster, queue string) error {
	for _, m := range cl.Running() {
		if _, ok := m.Node().Ledger().Queue(queue); !ok {
			return fmt.Errorf("the ledger of %s does not have it", m.Name)
		}
	}
	return nil
}
