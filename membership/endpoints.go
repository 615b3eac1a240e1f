package membership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// membersTimeout bounds a request about members: the authority asks all of them and
// commits a change.
const membersTimeout = 4 * time.Second

// Handler returns the API's handler of one verb about members. It serves the request on
// whichever node it arrives.
func (m *Member) Handler(verb string) func(context.Context, *api.MemberRequest) (*api.Membership, error) {
	return func(ctx context.Context, q *api.MemberRequest) (*api.Membership, error) {
		for _, address := range []struct{ key, value string }{{"route", q.Route}, {"raft", q.Raft}} {
			if address.value == "" {
				continue
			}
			if err := m.cfg.CheckAddress(address.key, address.value); err != nil {
				return nil, &job.InvalidError{Reason: err.Error()}
			}
		}
		return m.request(ctx, Request{Verb: verb, By: cluster.ActorOf(ctx), MemberRequest: *q})
	}
}

// request sends a request about members to the authority, and retries while the
// authority changes.
func (m *Member) request(ctx context.Context, q Request) (v *api.Membership, err error) {
	if !m.cfg.Clustered {
		return nil, &api.Error{Code: api.CodeConflict, Text: "this node runs alone: it has no members; docs/guides/backup.md shows how a yard of one becomes one of three"}
	}
	ctx, cancel := context.WithTimeout(ctx, membersTimeout)
	defer cancel()
	for {
		owner, changed := m.cfg.Authority()
		switch owner {
		case "":
			err = errNoAuthority
		case m.transfer.Node:
			v, err = m.serve(ctx, q)
		default:
			v = new(api.Membership)
			err = m.transfer.Fleet.RequestJSON(ctx, owner, verbMembers, q, v)
		}
		if err == nil || !m.cfg.NotProposed(err) {
			return v, err
		}
		select { // the authority has changed, or is about to
		case <-changed:
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, &job.UnavailableError{Reason: "no authority answers", RetryAfter: time.Second}
		}
	}
}

var errNoAuthority = &api.Error{Code: cluster.CodeNotAuthority, Text: "no authority is known"}

// serve serves a request about members on the authority itself: it begins the change, if
// the request is for one, and returns the state of all members.
func (m *Member) serve(ctx context.Context, q Request) (*api.Membership, error) {
	if q.Verb != Show {
		var restoreID string
		m.transfer.Raft.View(func(l *ledger.Ledger) { _, restoreID = l.Restoring() })
		if restoreID != "" { // the ledger checks this as well, but only when the change is proposed
			return nil, &api.Error{Code: api.CodeConflict, Text: fmt.Sprintf("%v (of %s); wait for its end, or give it up by 'yardmaster restore --abandon'", ledger.ErrRestoring, restoreID)}
		}
		if err := m.reconciler.Begin(ctx, q); err != nil {
			return nil, m.apiError(err)
		}
	}
	v := m.reconciler.View(ctx)
	return &v, nil
}

// apiError adds the error code to an error of [Reconciler.Begin].
func (m *Member) apiError(err error) error {
	_, isRefused := errors.AsType[*RefusedError](err)
	switch {
	case errors.Is(err, ErrAuthorityMoved), m.cfg.NotProposed(err):
		return &api.Error{Code: cluster.CodeNotAuthority, Text: err.Error()}
	case errors.Is(err, ledger.ErrMemberNotFound):
		return &api.Error{Code: api.CodeNotFound, Text: err.Error()}
	case isRefused, errors.Is(err, ledger.ErrMembersChanging), errors.Is(err, ledger.ErrRestoring), errors.Is(err, ledger.ErrNoChange),
		errors.Is(err, ledger.ErrMemberExists), errors.Is(err, ledger.ErrMemberCount):
		return &api.Error{Code: api.CodeConflict, Text: err.Error()}
	}
	return err
}

// serveMembers serves a [Request] that another node has sent to the authority. It fails
// if this node does not hold the authority.
func (m *Member) serveMembers(ctx context.Context, payload []byte) ([]byte, error) {
	var q Request
	if err := json.Unmarshal(payload, &q); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	if owner, _ := m.cfg.Authority(); owner != m.transfer.Node {
		return nil, errNoAuthority
	}
	v, err := m.serve(ctx, q)
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}
