package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Intruder is a server of somebody's that has joined a yard's routes: what it says in
// the yard's account, all members take for each other's word.
type Intruder struct {
	srv *server.Server
	nc  *nats.Conn
}

// Join starts a server that knows the routes of a yard without a secret; url is where
// clients of one of its members connect.
func Join(url string, routes ...string) (*Intruder, error) {
	asking, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	name := asking.ConnectedClusterName()
	asking.Close()
	for i := range routes {
		routes[i] = fmt.Sprintf("%q", "nats-route://"+routes[i])
	}
	opts := &server.Options{}
	err = opts.ProcessConfigString(fmt.Sprintf(`
server_name: intruder
listen: "127.0.0.1:-1"
cluster { name: %q, listen: "127.0.0.1:-1", no_advertise: true, pool_size: 3, accounts: [YARD], routes: [%s] }
accounts { YARD { jetstream: enabled, users: [ { user: intruder, password: intruder } ] } }
`, name, strings.Join(routes, ", ")))
	if err != nil {
		return nil, err
	}
	opts.NoSigs, opts.NoLog = true, true
	i := &Intruder{}
	if i.srv, err = server.NewServer(opts); err != nil {
		return nil, err
	}
	i.srv.Start()
	if !i.srv.ReadyForConnections(10 * time.Second) {
		i.Leave()
		return nil, errors.New("the intruder's server does not start")
	}
	if i.nc, err = nats.Connect("", nats.InProcessServer(i.srv), nats.UserInfo("intruder", "intruder")); err != nil {
		i.Leave()
		return nil, err
	}
	return i, nil
}

// Leave ends the server.
func (i *Intruder) Leave() {
	if i.nc != nil {
		i.nc.Close()
	}
	i.srv.Shutdown()
	i.srv.WaitForShutdown()
}

// Ask says something, nothing if the question is nil, and reads the answer; one that
// tells of an error is one.
func (i *Intruder) Ask(ctx context.Context, subject string, question, answer any) error {
	var body []byte
	if question != nil {
		var err error
		if body, err = json.Marshal(question); err != nil {
			return err
		}
	}
	m, err := i.nc.RequestWithContext(ctx, subject, body)
	if err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}
	var failed struct {
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := errors.Join(json.Unmarshal(m.Data, &failed), json.Unmarshal(m.Data, answer)); err != nil {
		return err
	}
	if failed.Error != nil {
		return fmt.Errorf("%s: %s", subject, failed.Error.Description)
	}
	return nil
}
