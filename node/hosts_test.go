package node

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

// What deploy/hosts gives an operator is one yard, with every door guarded.
func TestHosts_Configurations(t *testing.T) {
	unit, err := os.ReadFile("../deploy/hosts/yardmaster.service")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(unit)) { // the unit's variables are keys, and name files
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
		c, err := Load(fmt.Sprintf("../deploy/hosts/n%d.toml", i))
		if err != nil {
			t.Fatal(err)
		}
		if open := c.openDoors(); len(open) > 0 {
			t.Errorf("n%d leaves doors open: %v", i, open)
		}
		name, host := fmt.Sprintf("n%d", i), fmt.Sprintf("10.0.0.%d:", i)
		if c.Node.Name != name || !strings.HasPrefix(c.me().Raft, host) || !strings.HasPrefix(c.NATS.Listen, host) ||
			!strings.HasPrefix(c.HTTP.Listen, host) || !strings.HasPrefix(c.Server.Address(), host) || !strings.Contains(c.Cluster.TLS.CertFile, name) {
			t.Errorf("n%d mixes hosts up: %+v", i, c)
		}
		if first.Cluster.Members == nil {
			first = c
		}
		if !reflect.DeepEqual(c.Cluster.Members, first.Cluster.Members) || c.Cluster.Name != first.Cluster.Name {
			t.Errorf("n%d has other members than n1", i)
		}
	}
}

// Nothing can be reached from elsewhere until somebody says so, and whoever says
// so without a guard is told which key would be one.
func TestOpenDoors(t *testing.T) {
	c := new(Config).WithDefaults()
	if open := c.openDoors(); len(open) > 0 {
		t.Errorf("by default %v stand open", open)
	}
	c = Config{Node: NodeConfig{Name: "n1"}}
	c.NATS.Listen, c.HTTP.Listen, c.Server.Host = "0.0.0.0:4222", "[::]:4280", "10.0.0.1"
	for _, name := range []string{"n1", "n2", "n3"} {
		c.Cluster.Members = append(c.Cluster.Members, MemberConfig{name, name + ":6222", name + ":7222"})
	}
	c = c.WithDefaults()
	var keys []string
	for _, d := range c.openDoors() {
		keys = append(keys, d.key)
	}
	if got, want := strings.Join(keys, " "), "nats.users http.token server.token cluster.tls cluster.tls"; got != want {
		t.Errorf("to be closed with %q; want %q", got, want)
	}
	c.NATS.TLS.ClientCAFile, c.HTTP.Token, c.Server.Token, c.Cluster.TLS.CAFile = "ca.pem", "t", "t", "ca.pem"
	if open := c.openDoors(); len(open) > 0 {
		t.Errorf("guarded, and yet %v stand open", open)
	}
}
