package job

// Kind tells who runs a job.
type Kind uint8

// The two kinds of hands.
const (
	Overhop Kind = iota + 1 // a TCP worker at an edge
	RRQ                     // a local runner process
)

func (k Kind) String() string {
	if k == RRQ {
		return "rrq"
	}
	return "overhop"
}

// Offer is room a node announces: one worker's credits at one queue, or the
// free slots of one runner process. Free is absolute, not a change.
type Offer struct {
	Kind   Kind
	Key    string // Overhop: the queue; RRQ: the runner's name
	Worker string // Overhop: the worker's id; RRQ: "<pool>/<port>"
	Free   int    // credits or slots, ≥ 0; 0 withdraws the offer
}

// Channel is how a dispatch was told: the contract's channel.
func (o Offer) Channel() string { return Channel(o.Kind, o.Worker) }

// Channel names a worker as the contract's channel: "overhop/<wid>" or
// "rrq/<pool>/<port>".
func Channel(k Kind, worker string) string { return k.String() + "/" + worker }
