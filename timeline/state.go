package timeline

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// State is the state of a yard after an event.
type State struct {
	Event     uint64            `json:"event"` // number of the last event
	At        time.Time         `json:"at"`    // of the last event
	Accepted  int64             `json:"accepted"`
	Removed   int64             `json:"removed"`
	Forgotten int64             `json:"forgotten,omitempty"` // by retention, of Removed; as far as the events say that were added
	Queues    map[string]*Queue `json:"queues"`
	Limits    map[string]*Limit `json:"limits,omitempty"`
	Crons     map[string]*Cron  `json:"crons,omitempty"`
	Running   map[ID]*Run       `json:"running,omitempty"`
	Authority Authority         `json:"authority"`
	Backlog   Backlog           `json:"backlog"`
	Members   json.RawMessage   `json:"members,omitempty"`
	Retention json.RawMessage   `json:"retention,omitempty"`
}

// Queue is a queue, and how many jobs it has in each state.
type Queue struct {
	Paused   bool            `json:"paused,omitempty"`
	Settings json.RawMessage `json:"settings,omitempty"`
	Counts   Counts          `json:"counts"`
}

// stateNames are the names of the states of jobs.
var stateNames = [...]string{"waiting", "delayed", "active", "completed", "failed", "cancelled", "expired"}

// Counts are numbers of jobs by their states. In JSON they have the names of the states, without
// those that are 0.
type Counts [len(stateNames)]int64

// add adds n to the number of jobs in a state. Jobs in other states are nowhere.
func (c *Counts) add(state string, n int64) {
	for i, name := range stateNames {
		if name == state {
			c[i] += n
			return
		}
	}
}

// MarshalJSON returns the numbers by the names of the states.
func (c Counts) MarshalJSON() ([]byte, error) {
	named := make(map[string]int64)
	for i, n := range c {
		if n != 0 {
			named[stateNames[i]] = n
		}
	}
	return json.Marshal(named)
}

// UnmarshalJSON reads what MarshalJSON returned.
func (c *Counts) UnmarshalJSON(text []byte) error {
	var named map[string]int64
	err := json.Unmarshal(text, &named)
	*c = Counts{}
	for name, n := range named {
		c.add(name, n)
	}
	return err
}

// Limit is a named limit.
type Limit struct {
	Paused   bool            `json:"paused,omitempty"`
	Open     bool            `json:"open,omitempty"` // its circuit
	Settings json.RawMessage `json:"settings,omitempty"`
}

// Cron is a cron entry.
type Cron struct {
	Paused   bool            `json:"paused,omitempty"`
	Settings json.RawMessage `json:"settings,omitempty"`
}

// Run is a job that runs.
type Run struct {
	Queue    string    `json:"queue"`
	Function string    `json:"function,omitempty"`
	Node     string    `json:"node,omitempty"`
	Worker   string    `json:"worker,omitempty"` // its channel
	Attempt  uint32    `json:"attempt,omitempty"`
	Key      string    `json:"key,omitempty"`    // under which it uses limits
	Limits   string    `json:"limits,omitempty"` // that it names itself
	Started  time.Time `json:"started"`
}

// Authority is the lease on the right to decide.
type Authority struct {
	Owner       string `json:"owner,omitempty"`
	LeaseID     string `json:"lease_id,omitempty"`
	LeasedUntil string `json:"leased_until,omitempty"`
}

// Backlog has the numbers of dispatches, as the runtime contract's snapshot has them.
type Backlog struct {
	Pending   uint64 `json:"pending"`
	Notified  uint64 `json:"notified"`
	Delivered uint64 `json:"delivered"`
	Failed    uint64 `json:"failed"`
}

// ID is the id of a job.
type ID [16]byte

// String returns the id as a UUID.
func (id ID) String() string {
	h := hex.EncodeToString(id[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// MarshalText returns the id as a UUID.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads a UUID.
func (id *ID) UnmarshalText(text []byte) error {
	parsed, ok := parseID(string(text))
	if !ok {
		return fmt.Errorf("%.40q is not the id of a job", text)
	}
	*id = parsed
	return nil
}

func parseID(text string) (id ID, ok bool) {
	digits := strings.ReplaceAll(text, "-", "")
	if len(text) != 36 || len(digits) != 32 {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(digits))
	return id, err == nil
}

// systemQueue is the queue that a yard has before its first event.
const systemQueue = "_system"

// New returns the state before the first event.
func New() *State {
	s := &State{Queues: map[string]*Queue{systemQueue: {}}}
	s.fill()
	return s
}

// fill sets maps that are nil.
func (s *State) fill() {
	if s.Queues == nil {
		s.Queues = map[string]*Queue{}
	}
	if s.Limits == nil {
		s.Limits = map[string]*Limit{}
	}
	if s.Crons == nil {
		s.Crons = map[string]*Cron{}
	}
	if s.Running == nil {
		s.Running = map[ID]*Run{}
	}
}

// Imbalance returns how many more jobs were accepted than there are in all states and were
// removed.
func (s *State) Imbalance() int64 {
	n := s.Accepted - s.Removed
	for _, q := range s.Queues {
		for _, count := range q.Counts {
			n -= count
		}
	}
	return n
}

// Total returns the numbers of jobs in all queues together.
func (s *State) Total() Counts {
	var total Counts
	for _, q := range s.Queues {
		for i, n := range q.Counts {
			total[i] += n
		}
	}
	return total
}

// plainSize is the size up to which a base is not compressed.
const plainSize = 64 << 10

// Encode returns the state as JSON, compressed with gzip if it is large: a base, from which
// [Decode] and [State.Add] rebuild later states.
func (s *State) Encode() ([]byte, error) {
	text, err := json.Marshal(s)
	if err != nil || len(text) <= plainSize {
		return text, err
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err = w.Write(text)
	err = errors.Join(err, w.Close()) // before the bytes are read
	return packed.Bytes(), err
}

// maxBase is the size of the largest base that is read, uncompressed.
const maxBase = 256 << 20

// Decode reads what [State.Encode] returned.
func Decode(base []byte) (*State, error) {
	if bytes.HasPrefix(base, []byte{0x1f, 0x8b}) {
		r, err := gzip.NewReader(bytes.NewReader(base))
		if err == nil {
			base, err = io.ReadAll(io.LimitReader(r, maxBase))
		}
		if err != nil {
			return nil, fmt.Errorf("decompress a base of the history: %w", err)
		}
	}
	s := new(State)
	if err := json.Unmarshal(base, s); err != nil {
		return nil, fmt.Errorf("decode a base of the history: %w", err)
	}
	s.fill()
	return s, nil
}
