package pages

import (
	"context"
	"slices"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/web"
	"github.com/yardmaster-dev/yardmaster/web/console/calls"
)

// Workers loads the page.
func Workers(ctx context.Context, e *Env, v *View) (any, error) {
	return ask[api.WorkerList](ctx, e, v, "worker-list", &api.WorkerRequest{Node: v.Query.Get("node"), Queue: v.Query.Get("queue")})
}

// membersData is the data of the page of members.
type membersData struct {
	api.Membership
	Known   bool // Membership is known
	Problem error
	Rows    []memberRow
}

// Down returns the name of a member that is down, "" if none is.
func (d *membersData) Down() string {
	for _, row := range d.Rows {
		if row.State == "down" {
			return row.Name
		}
	}
	return ""
}

// memberRow is a member as different parts of the yard see it.
type memberRow struct {
	Name      string
	State     string // up, draining, down or unknown
	Authority bool
	Leader    bool
	Status    *api.MemberStatus
	Node      *api.NodeStatus // as the authority sees it
	Member    *api.Member
	URL       string // of its console; "" if it is not known
	Self      bool
}

// Members loads the page.
func Members(ctx context.Context, e *Env, v *View) (any, error) {
	if !v.User.MayUse("status", "") {
		return nil, calls.Forbidden(v.User, "status")
	}
	status, err := e.Status(ctx)
	if err != nil && status.Node == "" {
		return nil, err
	}
	d := &membersData{}
	d.Membership, d.Problem = ask[api.Membership](ctx, e, v, "cluster-members", nil)
	d.Known = d.Problem == nil
	peers := e.Peers()
	for i := range status.Members {
		m := &status.Members[i]
		row := memberRow{Name: m.Name, State: m.State, Leader: m.Leader, Status: m, Authority: m.Name == status.Authority.Owner && !status.Authority.Expired, Self: m.Name == e.Node}
		if i := slices.IndexFunc(status.Nodes, func(n api.NodeStatus) bool { return n.Name == m.Name }); i >= 0 {
			row.Node = &status.Nodes[i]
		}
		if i := slices.IndexFunc(d.Members, func(n api.Member) bool { return n.Name == m.Name }); i >= 0 {
			row.Member = &d.Members[i]
		}
		if i := slices.IndexFunc(peers, func(p Peer) bool { return p.Node == m.Name }); i >= 0 && peers[i].URL != "" {
			row.URL = peers[i].URL + web.ConsolePath
		}
		d.Rows = append(d.Rows, row)
	}
	slices.SortFunc(d.Rows, func(a, b memberRow) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return d, nil
}
