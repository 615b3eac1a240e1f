// Package pages loads what the pages of the console show: one function for each page, which
// asks the endpoints of the API on behalf of the user.
package pages

import (
	"context"
	"fmt"
	"net/url"
	"strconv"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/web"
	"github.com/yardmaster-dev/yardmaster/web/console/calls"
	"github.com/yardmaster-dev/yardmaster/web/console/session"
	"github.com/yardmaster-dev/yardmaster/web/console/tail"
)

// View is a page as a user asks for it.
type View struct {
	User  *session.User
	Name  string // of what the page is about
	Query url.Values
	URL   string
}

// Env is where pages get their data from.
type Env struct {
	Node     string // name of this member
	Call     calls.Func
	Status   func(context.Context) (api.Status, error) // of the yard as this node sees it, with an error also the last one that was known
	Peers    func() []Peer
	Tail     *tail.Tail
	Settings []Setting
}

// Peer is another member of the yard.
type Peer struct {
	Node string `json:"node"`
	URL  string `json:"url"` // of its HTTP listener, without a path; "" if it is not known
}

// Setting is a setting of the node that people may look up.
type Setting struct{ Key, Value string }

// Load returns the data of a page.
type Load func(context.Context, *Env, *View) (any, error)

// Redirect is the data of a page that only leads to another.
type Redirect string

// ask returns the reply of an endpoint to the user of a view.
func ask[Reply any](ctx context.Context, e *Env, v *View, endpoint string, request any) (Reply, error) {
	return calls.Ask[Reply](ctx, e.Call, v.User, endpoint, request)
}

// after returns the number after which a page of a list begins, 0 for the first page.
func (v *View) after() (uint64, error) {
	text := v.Query.Get("after")
	if text == "" {
		return 0, nil
	}
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, &api.Error{Code: api.CodeInvalid, Text: fmt.Sprintf("after is %q in the address; it must be a number, as in the link to the next page; leave it out for the first page", job.CutText(text, 64))}
	}
	return number, nil
}

// States are the states of jobs, in the order in which pages show them.
var States = func() (names []string) {
	for s := job.Waiting; int(s) < job.States; s++ {
		names = append(names, s.String())
	}
	return names
}()

// path returns the address of a page below the console's.
func path(page string) string { return web.ConsolePath + page }
