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

// Intruder is a foreign NATS server that has joined the routes of a cluster. The
// members cannot tell its messages in the YARD account from each other's.
type Intruder struct {
	srv *server.Server
	nc  *nats.Conn
}

// Connect starts a server that joins routes without a secret. url is the address
// for clients of a member, from which the name of the NATS cluster is read.
func Connect(url string, routes ...string) (*Intruder, error) {
	probe, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	name := probe.ConnectedClusterName()
	probe.Close()
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
		i.Close()
		return nil, errors.New("the intruder's server does not start")
	}
	if i.nc, err = nats.Connect("", nats.InProcessServer(i.srv), nats.UserInfo("intruder", "intruder")); err != nil {
		i.Close()
		return nil, err
	}
	return i, nil
}

// Close stops the server.
func (i *Intruder) Close() {
	if i.nc != nil {
		i.nc.Close()
	}
	i.srv.Shutdown()
	i.srv.WaitForShutdown()
}

// Ask sends a request, without a body if request is nil, and decodes the answer. An
// answer that contains an error is returned as an error.
func (i *Intruder) Ask(ctx context.Context, subject string, request, answer any) error {
	var body []byte
	if request != nil {
		var err error
		if body, err = json.Marshal(request); err != nil {
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
