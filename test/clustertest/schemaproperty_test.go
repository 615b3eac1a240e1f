package clustertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// schemaProperty changes the schemas of a queue at random while producers enqueue jobs at
// random doors. The payloads are objects with the properties a and b, and each schema wants a
// type of both, so that what matches is known without a schema.
type schemaProperty struct {
	cl *clustertest.Cluster

	mu      sync.RWMutex // held for reading while a job is published, for writing while schemas change
	rules   [2]rule      // of the functions f and g
	changes int
}

// rule is a schema that wants a and b to be texts or integers.
type rule struct{ enforced, aText, bText bool }

func (r rule) schema() string {
	kind := map[bool]string{true: "string", false: "integer"}
	return fmt.Sprintf(`{"properties":{"a":{"type":%q},"b":{"type":%q}},"required":["a"]}`, kind[r.aText], kind[r.bText])
}

func (r rule) matches(p payload) bool {
	return !r.enforced || p.hasA && p.aText == r.aText && (!p.hasB || p.bText == r.bText)
}

type payload struct{ hasA, aText, hasB, bText bool }

func (p payload) params(number int) map[string]any {
	value := map[bool]any{true: "x", false: 7}
	params := map[string]any{"n": number}
	if p.hasA {
		params["a"] = value[p.aText]
	}
	if p.hasB {
		params["b"] = value[p.bText]
	}
	return params
}

var propertyFunctions = [2]string{"f", "g"}

// change changes the schema of one function, waits until the change is answered, and now and
// then moves the authority. If settle is set, no job is being ingested meanwhile.
func (s *schemaProperty) change(t *testing.T, random *rand.Rand) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	i, next := random.IntN(2), rule{random.IntN(4) > 0, random.IntN(2) == 0, random.IntN(2) == 0}
	m := s.cl.Members[random.IntN(len(s.cl.Members))]
	name := api.SchemaRequest{Queue: "property", Function: propertyFunctions[i]}
	var err error
	switch {
	case next.enforced:
		err = m.API("schema.set", api.SchemaChange{SchemaRequest: name, Schema: json.RawMessage(next.schema())}, nil)
	case random.IntN(2) == 0:
		err = m.API("schema.set", api.SchemaChange{SchemaRequest: name, Schema: json.RawMessage(next.schema()), Warn: true}, nil)
	default:
		err = m.API("schema.remove", name, nil)
		if refused, ok := errors.AsType[*api.Error](err); ok && refused.Code == api.CodeNotFound {
			err = nil
		}
	}
	if err != nil { // it may have been carried out: the next change decides
		t.Logf("change %d: %v", s.changes, err)
		s.cl.Eventually("the schema is removed", func() error {
			err := m.API("schema.remove", name, nil)
			if refused, ok := errors.AsType[*api.Error](err); ok && refused.Code == api.CodeNotFound {
				return nil
			}
			return errors.Join(err, errors.New("it was there"))
		})
		next = rule{}
	}
	s.rules[i] = next
	if s.changes++; s.changes%7 == 0 {
		_ = m.API("cluster.transfer", map[string]any{"to": m.Name}, nil) // it may hold the authority already
	}
}

// settle waits until every job that was accepted is ingested, so that each was checked by the
// rules under which it was published.
func (s *schemaProperty) settle() {
	s.cl.Eventually("the lanes are ingested", func() error {
		status, err := s.cl.Members[0].Status()
		if err != nil {
			return err
		}
		for _, lane := range status.Lanes {
			if lane.Leader == "" || lane.Lag > 0 {
				return fmt.Errorf("lane %d lags by %d", lane.Lane, lane.Lag)
			}
		}
		return nil
	})
}

// publish publishes a random job at a random door, and returns whether it was acknowledged, and
// whether it matches its schema.
func (s *schemaProperty) publish(t *testing.T, random *rand.Rand, door door, number int) (accepted, matches bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	i, p := random.IntN(2), payload{random.IntN(8) > 0, random.IntN(2) == 0, random.IntN(2) == 0, random.IntN(2) == 0}
	err := door(t, propertyFunctions[i], fmt.Sprint("p", number), p.params(number))
	return err == nil, s.rules[i].matches(p)
}

// door publishes a job of the queue property.
type door func(t *testing.T, function, key string, params map[string]any) error

// propertyDoors returns the doors of a member; the last one is a plain publish, which cannot
// refuse.
func propertyDoors(t *testing.T, m *clustertest.Member) []door {
	_, js := connect(t, m)
	client := m.Overhop(t, overhop.Options{})
	spec := func(function, key string, params map[string]any) []byte {
		text, _ := json.Marshal(map[string]any{"id": key, "function": function, "params": params})
		return text
	}
	return []door{
		func(_ *testing.T, function, key string, params map[string]any) error {
			return m.Request("yard.enqueue.property", string(spec(function, key, params)), nil)
		},
		func(_ *testing.T, function, key string, params map[string]any) error {
			var reply api.BulkReply
			err := m.API("job.bulk", map[string]any{"queue": "property", "jobs": []json.RawMessage{spec(function, key, params)}}, &reply)
			if err == nil && reply.Refused > 0 {
				err = errors.New(reply.Jobs[0].Error.Message)
			}
			return err
		},
		func(t *testing.T, function, key string, params map[string]any) error {
			raw, err := overhop.Marshal(params)
			if err == nil {
				_, err = client.Enqueue(shortContext(t), overhop.Enqueue{Queue: "property", Function: function, Key: key, Payload: raw})
			}
			return err
		},
		func(t *testing.T, function, key string, params map[string]any) error {
			text, _ := json.Marshal(map[string]any{"function": function, "params": params})
			message := nats.NewMsg("yard.jobs.property")
			message.Header.Set("Nats-Msg-Id", key)
			message.Data = text
			_, err := js.PublishMsg(shortContext(t), message)
			return err
		},
	}
}

// TestSchemas_Property checks that no job starts which violates the schema that was enforced
// when it was published, and that every accepted job that matches does.
func TestSchemas_Property(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := &schemaProperty{cl: clustertest.Start(t, 3)}
	s.cl.Members[0].AddQueue(t, "property", 0)
	var mu sync.Mutex
	started := map[int]bool{}
	s.cl.Members[1].Worker(t, "property", 32, func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		n, _ := q.Payload.Get("n").Int()
		mu.Lock()
		defer mu.Unlock()
		started[int(n)] = true
		return nil, nil
	})

	const producers, jobs = 4, 150
	accepted, matching := make([]bool, producers*jobs), make([]bool, producers*jobs)
	var all sync.WaitGroup
	for p := range producers {
		random, doors := rand.New(rand.NewPCG(seed, uint64(p))), propertyDoors(t, s.cl.Members[p%3])
		all.Go(func() {
			for i := range jobs {
				n := p*jobs + i
				accepted[n], matching[n] = s.publish(t, random, doors[random.IntN(len(doors))], n)
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	for random, running := rand.New(rand.NewPCG(seed, 99)), true; running; {
		s.change(t, random)
		select {
		case <-done:
			running = false
		case <-time.After(20 * time.Millisecond): // so that some jobs meet each set of schemas
		}
	}
	s.settle()
	s.cl.Eventually("every accepted job that matches has started", func() error {
		mu.Lock()
		defer mu.Unlock()
		for n := range accepted {
			if accepted[n] && matching[n] && !started[n] {
				return fmt.Errorf("job %d has not", n)
			}
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	counts := map[string]int{}
	for n := range accepted {
		counts[fmt.Sprintf("accepted %t, matching %t, started %t", accepted[n], matching[n], started[n])]++
		if started[n] && !matching[n] {
			t.Errorf("job %d has started, and does not match its schema", n)
		}
	}
	t.Logf("%d changes, %v", s.changes, counts)
	if s.changes < 10 || counts["accepted true, matching true, started true"] < jobs || counts["accepted true, matching false, started false"] == 0 || counts["accepted false, matching false, started false"] == 0 {
		t.Errorf("too little has happened: %d changes, %v", s.changes, counts)
	}
}
