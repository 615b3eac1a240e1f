package console

import (
	"context"
	"slices"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
)

func loadWorkers(ctx context.Context, c *Console, v *view) (any, error) {
	return ask[api.WorkerList](ctx, c, v.user, "worker-list", &api.WorkerRequest{Node: v.query.Get("node"), Queue: v.query.Get("queue")})
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

func loadMembers(ctx context.Context, c *Console, v *view) (any, error) {
	if !mayUse(v.user, "status", "") {
		return nil, forbidden(v.user, "status")
	}
	status, err := c.status.get(ctx)
	if err != nil && status.Node == "" {
		return nil, err
	}
	d := &membersData{}
	d.Membership, d.Problem = ask[api.Membership](ctx, c, v.user, "cluster-members", nil)
	d.Known = d.Problem == nil
	peers, _ := c.peers.get(ctx)
	for i := range status.Members {
		m := &status.Members[i]
		row := memberRow{Name: m.Name, State: m.State, Leader: m.Leader, Status: m, Authority: m.Name == status.Authority.Owner && !status.Authority.Expired, Self: m.Name == c.cfg.Node}
		if i := slices.IndexFunc(status.Nodes, func(n api.NodeStatus) bool { return n.Name == m.Name }); i >= 0 {
			row.Node = &status.Nodes[i]
		}
		if i := slices.IndexFunc(d.Members, func(n api.Member) bool { return n.Name == m.Name }); i >= 0 {
			row.Member = &d.Members[i]
		}
		if i := slices.IndexFunc(peers, func(p Peer) bool { return p.Node == m.Name }); i >= 0 && peers[i].URL != "" {
			row.URL = peers[i].URL + Path
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

// eventsData is the data of the page of events.
type eventsData struct {
	Lines   []history.Line // newest first
	Types   []string
	Skipped bool
	Problem error
}

func loadEvents(ctx context.Context, c *Console, v *view) (any, error) {
	if !mayUse(v.user, "job-explain", "") { // shows the same events
		return nil, forbidden(v.user, "job-explain")
	}
	f := &history.Filter{Type: v.query.Get("type"), Queue: v.query.Get("queue"), Job: v.query.Get("job"), Idle: v.query.Get("idle") != ""}
	if f.Type != "" && !slices.Contains(history.TypeNames, history.TypeName(f.Type)) {
		return nil, &api.Error{Code: api.CodeInvalid, Text: "there is no event of the type " + f.Type}
	}
	d := &eventsData{Types: history.TypeNames}
	d.Lines, d.Skipped, d.Problem = c.tail.recent(ctx, f, 200)
	return d, nil
}

// settingsData is the data of the page of settings.
type settingsData struct {
	Node      []Setting
	Retention api.Retention
	Schemas   api.SchemaList
	Streams   []api.StreamStatus
	Lanes     []api.LaneStatus
}

func loadSettings(ctx context.Context, c *Console, v *view) (any, error) {
	d := &settingsData{Node: c.cfg.Settings}
	var err error
	if d.Retention, err = ask[api.Retention](ctx, c, v.user, "retention-show", nil); err != nil {
		return nil, err
	}
	if d.Schemas, err = ask[api.SchemaList](ctx, c, v.user, "schema-list", nil); err != nil {
		return nil, err
	}
	status, err := c.status.get(ctx)
	d.Streams, d.Lanes = status.Streams, status.Lanes
	return d, err
}
