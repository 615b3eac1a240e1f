package config

import (
	"net"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// composeDir holds the compose file and what it refers to.
const composeDir = "../../deploy/compose"

// composeFile is the part of a compose file that the tests compare with the nodes.
type composeFile struct {
	Services map[string]composeService
	Networks map[string]struct{ Internal bool }
	Volumes  map[string]any
	Secrets  map[string]struct{ File string }
}

type composeService struct {
	Init                             bool
	Environment                      map[string]string
	Ports, Volumes, Secrets, Command []string
	Entrypoint                       []string
	DependsOn                        []string `yaml:"depends_on"` // the short form, which docker-compose 1.29 and v2 both accept
	Networks                         yaml.Node
	Healthcheck                      struct{ Test []string }
}

func readCompose(t *testing.T) (f composeFile) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(composeDir, "compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &f); err != nil {
		t.Fatal(err)
	}
	var top map[string]any
	if err := yaml.Unmarshal(text, &top); err != nil {
		t.Fatal(err)
	}
	for key := range top {
		if !strings.HasPrefix(key, "x-") && !slices.Contains([]string{"services", "networks", "volumes", "secrets"}, key) {
			t.Errorf("compose.yml has a top-level %q, which docker-compose 1.29 rejects or v2 calls obsolete", key)
		}
	}
	return f
}

// aliases returns a service's names by network.
func (s *composeService) aliases(t *testing.T) map[string][]string {
	t.Helper()
	var list []string
	if s.Networks.Decode(&list) == nil {
		names := map[string][]string{}
		for _, network := range list {
			names[network] = nil
		}
		return names
	}
	var table map[string]struct{ Aliases []string }
	if err := s.Networks.Decode(&table); err != nil {
		t.Fatalf("networks: %v", err)
	}
	names := map[string][]string{}
	for network, n := range table {
		names[network] = n.Aliases
	}
	return names
}

// compose.yml and the nodes' files agree on names, ports and paths, and set only variables
// that a node has.
func TestCompose_AgreesWithNodes(t *testing.T) {
	f := readCompose(t)
	if !f.Networks["peers"].Internal {
		t.Error("the network peers is not internal")
	}
	var first *Config
	for _, name := range []string{"n1", "n2", "n3"} {
		s := f.Services[name]
		t.Run(name, func(t *testing.T) {
			c := s.load(t, &f, name)
			if first == nil {
				first = &c
			}
			if c.Node.Name != name || !reflect.DeepEqual(c.Cluster, first.Cluster) || !reflect.DeepEqual(c.RRQ.Runners, first.RRQ.Runners) {
				t.Errorf("node %q, cluster %+v", c.Node.Name, c.Cluster)
			}
			s.checkPlaces(t, &f, name, &c)
		})
	}
	for name, s := range f.Services {
		if !s.Init {
			t.Errorf("%s has no init", name)
		}
		for _, secret := range s.Secrets {
			if f.Secrets[secret].File != "./secrets/"+secret {
				t.Errorf("%s: secret %q is in %q", name, secret, f.Secrets[secret].File)
			}
		}
		if len(s.Entrypoint) > 0 {
			checkClient(t, name, s, first)
		}
	}
}

// load reads a node's file with the variables of its container, and with secrets of the
// test's own.
func (s *composeService) load(t *testing.T, f *composeFile, name string) Config {
	t.Helper()
	for key, value := range s.Environment {
		secret, mounted := strings.CutPrefix(value, "/run/secrets/")
		if !mounted || !slices.Contains(s.Secrets, secret) {
			t.Errorf("%s=%s is not a secret of %s: %v", key, value, name, s.Secrets)
			continue
		}
		file := filepath.Join(t.TempDir(), secret)
		if err := os.WriteFile(file, []byte(secret+"!\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv(key, file)
	}
	if want := []string{"./" + name + ".toml:/etc/yardmaster/node.toml:ro", name + ":/data"}; !slices.Equal(s.Volumes, want) {
		t.Errorf("volumes are %v; want %v", s.Volumes, want)
	}
	if _, ok := f.Volumes[name]; !ok {
		t.Errorf("volume %s is not declared", name)
	}
	c, err := Load(filepath.Join(composeDir, name+".toml"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Cluster.Secret != "cluster_secret!" || c.HTTP.Token != "http_token!" || c.Server.Token != "server_token!" {
		t.Errorf("a secret has the value of another: %q %q %q", c.Cluster.Secret, string(c.HTTP.Token), string(c.Server.Token))
	}
	return c
}

// checkPlaces compares where the node listens with what the container publishes.
func (s *composeService) checkPlaces(t *testing.T, f *composeFile, name string, c *Config) {
	t.Helper()
	if c.Node.DataDir != "/data" {
		t.Errorf("data_dir is %q, but the volume is at /data", c.Node.DataDir)
	}
	port := func(address string) string { _, p, _ := net.SplitHostPort(address); return p }
	var want []string
	for i, p := range []string{port(c.NATS.Listen), port(c.HTTP.Listen), port(c.Server.Address())} {
		want = append(want, "127.0.0.1:"+[]string{"422", "428", "987"}[i]+name[1:]+":"+p)
	}
	if !slices.Equal(s.Ports, want) {
		t.Errorf("ports are %v; want %v", s.Ports, want)
	}
	if got := s.Healthcheck.Test; len(got) < 2 || got[0] != "CMD" || got[len(got)-1] != "http://127.0.0.1:"+port(c.HTTP.Listen) {
		t.Errorf("the health check is %q", got)
	}
	me := c.Self()
	host, _, _ := net.SplitHostPort(me.Route)
	if aliases := s.aliases(t)["peers"]; !slices.Contains(aliases, host) || port(me.Route) == port(me.Raft) || !strings.HasPrefix(me.Raft, host+":") {
		t.Errorf("members reach %s at %s and %s; its names on the network peers are %v", name, me.Route, me.Raft, aliases)
	}
	if c.NATS.RouteListen != me.Route || c.Raft.Listen != me.Raft {
		t.Errorf("routes and Raft listen on %s and %s, not only on the network peers", c.NATS.RouteListen, c.Raft.Listen)
	}
	if want := name + ":" + port(c.Server.Address()); c.Server.Advertise != want {
		t.Errorf("the edge advertises %q; want %q", c.Server.Advertise, want)
	}
}

// checkClient checks a worker or producer: it is only on the clients' network, has the
// addresses of all edges, and uses the token.
func checkClient(t *testing.T, name string, s composeService, c *Config) {
	t.Helper()
	if networks := s.aliases(t); len(networks) != 1 || !slices.Equal(s.DependsOn, c.MemberNames()) {
		t.Errorf("%s is on %v and depends on %v", name, networks, s.DependsOn)
	}
	flags := map[string]string{}
	for i := 0; i+1 < len(s.Command); i += 2 {
		flags[s.Command[i]] = s.Command[i+1]
	}
	edges := strings.Split(flags["--addr"], ",")
	slices.Sort(edges)
	_, port, _ := net.SplitHostPort(c.Server.Address())
	for i, member := range c.MemberNames() {
		if i >= len(edges) || edges[i] != member+":"+port {
			t.Errorf("%s has the edges %v", name, edges)
		}
	}
	if dir, secret := path.Split(flags["--token-file"]); dir != "/run/secrets/" || !slices.Contains(s.Secrets, secret) {
		t.Errorf("%s takes its token from %q, and has %v", name, flags["--token-file"], s.Secrets)
	}
}

// Both images start a node with the file that compose.yml mounts, and contain the programs
// that it starts.
func TestCompose_Images(t *testing.T) {
	f := readCompose(t)
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Dockerfile", "Dockerfile.host"} {
		text, err := os.ReadFile(filepath.Join(composeDir, name))
		if err != nil {
			t.Fatal(err)
		}
		_, last, _ := strings.Cut("\n"+string(text), "\nFROM scratch\n")
		for _, want := range []string{`ENTRYPOINT ["yardmaster"]`, `CMD ["node", "--config", "/etc/yardmaster/node.toml"]`, "USER 65532:65532"} {
			if !strings.Contains(last, want) {
				t.Errorf("%s lacks %s", name, want)
			}
		}
		built := string(text)
		if name == "Dockerfile.host" {
			built = string(makefile)
		}
		for service, s := range f.Services {
			if len(s.Entrypoint) > 0 && !strings.Contains(built, "./examples/"+s.Entrypoint[0]) {
				t.Errorf("%s: the image of %s has no program %s", service, name, s.Entrypoint[0])
			}
		}
		if !strings.Contains(built, "./examples/runner") || !strings.Contains(built, "/data") {
			t.Errorf("the image of %s has no runner, or no directory for data", name)
		}
	}
}
