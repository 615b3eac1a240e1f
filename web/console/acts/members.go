package acts

import (
	"cmp"
	"context"
	"fmt"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/web"
	"github.com/yardmaster-dev/yardmaster/web/console/format"
)

// transferAuthority transfers the authority to a member.
func transferAuthority(ctx context.Context, a *Act) (string, error) {
	r, err := do[api.Transfer](ctx, a, "cluster-transfer", "", map[string]string{"to": a.value("to")})
	return fmt.Sprintf("%s holds the authority now, from %s.", r.To, r.From), err
}

// drainNode drains a member.
func drainNode(ctx context.Context, a *Act) (string, error) {
	_, err := do[api.DrainStatus](ctx, a, "drain", a.Form.Get("node"), nil)
	return a.Form.Get("node") + " takes no more work. Its jobs finish, and what it leads moves to other members.", err
}

// resumeNode ends the drain of a member.
func resumeNode(ctx context.Context, a *Act) (string, error) {
	_, err := do[api.Resumed](ctx, a, "resume", a.Form.Get("node"), nil)
	return a.Form.Get("node") + " takes work again.", err
}

// changeWorker returns an act on the worker or process that the form names, with the member
// that it is at.
func changeWorker(endpoint string) func(context.Context, *Act) (string, error) {
	return func(ctx context.Context, a *Act) (string, error) {
		d, err := do[api.WorkerDrain](ctx, a, endpoint, "", &api.WorkerRequest{Worker: a.Form.Get("worker"), Node: a.Form.Get("at")})
		name := format.Shorten(cmp.Or(d.Name, d.Worker), format.CutName)
		if !d.Drained {
			return name + " takes jobs again.", err
		}
		return fmt.Sprintf("%s is given no more jobs. It finishes those that it runs: %d.", name, d.Running), err
	}
}

// runCron enqueues a cron entry's job.
func runCron(ctx context.Context, a *Act) (string, error) {
	r, err := do[api.EnqueueReply](ctx, a, "cron-run", "", map[string]string{"name": a.Form.Get("name")})
	if err == nil {
		a.Form.Set("then", web.ConsolePath+"jobs/"+r.ID.String())
	}
	return "The job of cron entry " + format.Shorten(a.Form.Get("name"), format.CutName) + " was enqueued: this is it.", err
}
