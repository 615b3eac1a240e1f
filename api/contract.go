package api

import "github.com/yardmaster-dev/yardmaster/ledger"

// ContractCommand is a command of the runtime contract. Its other fields depend on the
// command: see [ContractForms].
type ContractCommand struct {
	Command string `json:"command"`
}

// ContractEvent is the event of the runtime contract that answers a command. Its other
// fields depend on the event: see [ContractForms].
type ContractEvent struct {
	Event string `json:"event"`
}

// Form describes one form of a request and its reply. The forms of an endpoint are told
// apart by the first field of its request and its reply, which has the form's name.
type Form struct {
	Request string // name of the request
	Reply   string // name of its reply
	Fields  any    // zero value of a struct with the other fields of both
}

// ContractForms lists the commands of the runtime contract, each with the event that
// answers it and repeats its fields.
var ContractForms = []Form{
	{"AcquireAuthority", "AuthorityAcquired", ledger.AcquireAuthority{}},
	{"RenewAuthority", "AuthorityRenewed", ledger.RenewAuthority{}},
	{"QueueDispatch", "DispatchQueued", ledger.QueueDispatch{}},
	{"MarkNotified", "DispatchNotified", ledger.MarkNotified{}},
	{"MarkDelivered", "DispatchDelivered", ledger.MarkDelivered{}},
	{"MarkFailed", "DispatchFailed", ledger.MarkFailed{}},
	{"RequestReplay", "ReplayRequested", ledger.RequestReplay{}},
	{"CaptureSnapshot", "SnapshotCaptured", struct{}{}},
}
