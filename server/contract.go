package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/authority"
)

// Contract carries out the commands of the runtime contract. All fields are required.
type Contract struct {
	Authority *authority.Client
	// IsMember reports whether a member has this name.
	IsMember func(name string) bool
	// Acquire transfers the authority to the member a.Owner and returns the event of
	// its acquisition, with the index of its entry.
	Acquire func(ctx context.Context, a *ledger.AcquireAuthority) (event []byte, index uint64, err error)
	// SnapshotContext returns what a snapshot needs besides the ledger.
	SnapshotContext func(ctx context.Context) ledger.SnapshotContext
}

// Handlers returns the handlers by the name of the endpoint.
func (c *Contract) Handlers() map[string]Handler {
	return map[string]Handler{"exec": Raw(c.exec), "exec-command": Raw(c.execNamed)}
}

// maxShownName is how many bytes of an unknown name an error shows.
const maxShownName = 60

// execNamed is exec for a subject that names the command, so that a role can be limited
// to some commands. It rejects any other command.
func (c *Contract) execNamed(ctx context.Context, text []byte) ([]byte, error) {
	named := Token(ctx)
	names := make([]string, len(api.ContractForms))
	for i, form := range api.ContractForms {
		names[i] = form.Request
	}
	if !slices.Contains(names, named) {
		return nil, &api.Error{Code: api.CodeInvalid, Text: fmt.Sprintf("there is no command %q; must be one of %s", job.CutText(named, maxShownName), strings.Join(names, ", "))}
	}
	command, err := ledger.ParseCommand(text)
	if err != nil {
		return nil, &api.Error{Code: api.CodeInvalid, Text: fmt.Sprintf(`%v; the request is the whole command, {"command":%q} with its fields`, err, named)}
	}
	if tag := ledger.CommandTag(command); tag != named {
		return nil, &api.Error{Code: api.CodeInvalid, Text: fmt.Sprintf("the subject names the command %s, the request %s", named, tag)}
	}
	return c.exec(ctx, text)
}

// exec carries out one command of the runtime contract, which is text, and returns the
// event that answers it. The ledger's errors keep the texts of the contract.
func (c *Contract) exec(ctx context.Context, text []byte) ([]byte, error) {
	command, err := ledger.ParseCommand(text)
	if err == nil {
		err = ledger.Check(command)
	}
	if err != nil {
		return nil, &api.Error{Code: api.CodeInvalid, Text: err.Error()}
	}
	if a, ok := command.(*ledger.AcquireAuthority); ok && c.IsMember(a.Owner) {
		event, index, err := c.Acquire(ctx, a)
		SetIndex(ctx, index)
		return event, err
	}
	if capture, ok := command.(*ledger.CaptureSnapshot); ok {
		capture.Context = c.SnapshotContext(ctx)
	}
	result, err := c.Authority.Propose(ctx, command)
	SetIndex(ctx, result.Index)
	SetEvent(ctx, result.EventNumber)
	return result.Event, contractError(err)
}

// contractError adds the error code to an error of the ledger and keeps its text. It
// returns other errors, and nil, unchanged.
func contractError(err error) error {
	var rejected *authority.RejectedError
	switch {
	case errors.Is(err, ledger.ErrBacklogFull):
		return &api.Error{Code: api.CodeUnavailable, Text: err.Error(), RetryAfter: time.Second}
	case errors.As(err, &rejected):
		return &api.Error{Code: api.CodeConflict, Text: rejected.Error()}
	}
	return err
}
