package job

// Kind is the kind of executor that runs a job.
type Kind uint8

// The kinds of executors.
const (
	Overhop Kind = iota + 1 // a worker connected over TCP
	RRQ                     // a runner process on the node
)

// String returns "overhop" or "rrq".
func (k Kind) String() string {
	if k == RRQ {
		return "rrq"
	}
	return "overhop"
}

// Offer is capacity that a node announces: one worker's credits for one queue,
// or the free slots of one runner process. Free is an absolute number, not a
// change.
type Offer struct {
	Kind   Kind
	Key    string // Overhop: the queue; RRQ: the runner's name
	Worker string // Overhop: the worker's id; RRQ: "<pool>/<port>"
	Free   int    // credits or slots, ≥ 0; 0 withdraws the offer
}

// Channel returns the channel of the offer's worker; see the function
// [Channel].
func (o Offer) Channel() string { return Channel(o.Kind, o.Worker) }

// Channel returns the name of a worker in the runtime contract, where it is
// called a channel: "overhop/<worker id>" or "rrq/<pool>/<port>".
func Channel(k Kind, worker string) string { return k.String() + "/" + worker }
