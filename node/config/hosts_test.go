package config

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

// The files in deploy/hosts configure one cluster, and every listener authenticates clients.
func TestHostConfigurations(t *testing.T) {
	unit, err := os.ReadFile("../../deploy/hosts/yardmaster.service")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(unit)) { // variables of the unit are keys that name files
		variable, ok := strings.CutPrefix(strings.TrimSpace(line), "Environment=")
		if !ok {
			continue
		}
		name, _, _ := strings.Cut(variable, "=")
		file := t.TempDir() + "/secret"
		if err := os.WriteFile(file, []byte("sesame\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv(name, file)
	}
	var first Config
	for i := 1; i <= 3; i++ {
		c, err := Load(fmt.Sprintf("../../deploy/hosts/n%d.toml", i))
		if err != nil {
			t.Fatal(err)
		}
		if open := c.OpenListeners(); len(open) > 0 {
			t.Errorf("n%d has open listeners: %v", i, open)
		}
		name, host := fmt.Sprintf("n%d", i), fmt.Sprintf("10.0.0.%d:", i)
		if c.Node.Name != name || !strings.HasPrefix(c.Self().Raft, host) || !strings.HasPrefix(c.NATS.Listen, host) ||
			!strings.HasPrefix(c.HTTP.Listen, host) || !strings.HasPrefix(c.Server.Address(), host) || !strings.Contains(c.Cluster.TLS.CertFile, name) {
			t.Errorf("n%d has addresses of another host: %+v", i, c)
		}
		if first.Cluster.Members == nil {
			first = c
		}
		if !reflect.DeepEqual(c.Cluster.Members, first.Cluster.Members) || c.Cluster.Name != first.Cluster.Name {
			t.Errorf("n%d has other members than n1", i)
		}
	}
}

// By default no listener can be reached from other hosts. Those that are opened without
// authentication are reported with the key that closes them.
func TestOpenListeners(t *testing.T) {
	c := new(Config).WithDefaults()
	if open := c.OpenListeners(); len(open) > 0 {
		t.Errorf("open by default: %v", open)
	}
	c = Config{Node: Node{Name: "n1"}}
	c.NATS.Listen, c.HTTP.Listen, c.Server.Host = "0.0.0.0:4222", "[::]:4280", "10.0.0.1"
	for _, name := range []string{"n1", "n2", "n3"} {
		c.Cluster.Members = append(c.Cluster.Members, Member{name, name + ":6222", name + ":7222"})
	}
	c = c.WithDefaults()
	var keys []string
	for _, d := range c.OpenListeners() {
		keys = append(keys, d.Key)
	}
	if got, want := strings.Join(keys, " "), "nats.users http.token server.token cluster.tls cluster.tls"; got != want {
		t.Errorf("keys %q; want %q", got, want)
	}
	c.NATS.TLS.ClientCAFile, c.HTTP.Token, c.Server.Token, c.Cluster.TLS.CAFile = "ca.pem", "t", "t", "ca.pem"
	if open := c.OpenListeners(); len(open) > 0 {
		t.Errorf("authenticated, but reported as open: %v", open)
	}
}
