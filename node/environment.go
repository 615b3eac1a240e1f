package node

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// envPrefix begins the environment variables that override the file:
// YARD_NODE_NAME for [node] name.
const envPrefix = "YARD_"

// fromEnvironment overrides the simple keys of [Config.tables]:
// YARD_<TABLE>_<KEY>, where a table's dot is a '_' too.
func fromEnvironment(c *Config, lookup func(string) (string, bool)) error {
	lookup, err := withSecretFiles(lookup)
	if err != nil {
		return err
	}
	for _, table := range c.tables() {
		for i := range table.v.NumField() {
			key := table.v.Type().Field(i).Tag.Get("toml")
			name := variable(table.name, key)
			text, ok := lookup(name)
			if !ok || !oneLine(table.v.Field(i)) {
				continue
			}
			if table.v.Field(i).Kind() == reflect.String {
				table.v.Field(i).SetString(text)
				continue
			}
			if strings.ContainsAny(text, "\r\n") {
				return fmt.Errorf("environment variable %s=%q: must be one line", name, text)
			}
			if _, err := toml.Decode("["+table.name+"]\n"+key+" = "+quoteDuration(table.v.Field(i), text), c); err != nil {
				return fmt.Errorf("environment variable %s=%q: %w", name, text, err)
			}
		}
	}
	return nil
}

// secretKeys are keys whose value a file may hold: a variable can be seen by
// whoever looks at the process or its container, and those are often many.
var secretKeys = []string{variable("cluster", "secret"), variable("http", "token"), variable("server", "token")}

// fileSuffix ends the variables that name such a file.
const fileSuffix = "_FILE"

// withSecretFiles answers for a secret with what is in its file. A newline at
// the file's end is an editor's, and no part of the secret.
func withSecretFiles(lookup func(string) (string, bool)) (func(string) (string, bool), error) {
	secrets := map[string]string{}
	for _, name := range secretKeys {
		path, ok := lookup(name + fileSuffix)
		if !ok {
			continue
		}
		if _, both := lookup(name); both {
			return nil, fmt.Errorf("environment variables %s and %s%s both give the same key; set one of them", name, name, fileSuffix)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("environment variable %s%s: %w; it must name a file that the node can read", name, fileSuffix, err)
		}
		secrets[name] = strings.TrimRight(string(text), "\r\n")
		if secrets[name] == "" {
			return nil, fmt.Errorf("environment variable %s%s: %s is empty; a secret that is empty would ask nothing of anybody", name, fileSuffix, path)
		}
	}
	return func(name string) (string, bool) {
		if secret, ok := secrets[name]; ok {
			return secret, true
		}
		return lookup(name)
	}, nil
}

// table is one of the tables that the environment may override.
type table struct {
	name string
	v    reflect.Value
}

func (c *Config) tables() []table {
	return []table{
		{"node", reflect.ValueOf(&c.Node).Elem()}, {"nats", reflect.ValueOf(&c.NATS).Elem()},
		{"http", reflect.ValueOf(&c.HTTP).Elem()},
		{"raft", reflect.ValueOf(&c.Raft).Elem()}, {"cluster", reflect.ValueOf(&c.Cluster).Elem()},
		{"scheduler", reflect.ValueOf(&c.Scheduler).Elem()}, {"disk", reflect.ValueOf(&c.Disk).Elem()},
		{"scrub", reflect.ValueOf(&c.Scrub).Elem()},
		{"server", reflect.ValueOf(&c.Server).Elem()},
		{"server.tls", reflect.ValueOf(&c.Server.TLS).Elem()},
		{"cluster.tls", reflect.ValueOf(&c.Cluster.TLS).Elem()},
		{"nats.tls", reflect.ValueOf(&c.NATS.TLS).Elem()}, {"http.tls", reflect.ValueOf(&c.HTTP.TLS).Elem()},
	}
}

func variable(table, key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(table, ".", "_")+"_"+key)
}

// oneLine tells a key whose value a variable can hold.
func oneLine(field reflect.Value) bool {
	return field.Kind() != reflect.Struct && field.Kind() != reflect.Slice
}

// otherVariables begin with the prefix and are no keys: they are for those who
// work on the yard, and for runners.
var otherVariables = []string{
	"YARD_PPROF", "YARD_WITNESS", "YARD_RUNNER", "YARD_BIN", "YARD_SOAK", "YARD_DRILL_DIR", "YARD_DRILL_WORK", "YARD_COMPOSE",
	"YARD_RRQ_PYTHON", "YARD_RRQ_TS", "YARD_RRQ_RUST",
}

// testVariables begins the variables by which tests run themselves anew.
const testVariables = envPrefix + "TEST_"

// checkEnvironment refuses variables that look like keys and are none: whoever
// set one believes that it has an effect.
func checkEnvironment(environment []string) error {
	var keys []string
	for _, t := range new(Config).tables() {
		for i := range t.v.NumField() {
			if oneLine(t.v.Field(i)) {
				keys = append(keys, variable(t.name, t.v.Type().Field(i).Tag.Get("toml")))
			}
		}
	}
	for _, name := range secretKeys {
		keys = append(keys, name+fileSuffix)
	}
	for _, entry := range environment {
		name, _, _ := strings.Cut(entry, "=")
		switch {
		case !strings.HasPrefix(name, envPrefix), slices.Contains(otherVariables, name), strings.HasPrefix(name, testVariables):
		case name == variable("cluster", "members"), name == variable("nats", "users"):
			what := strings.ToLower(name[strings.LastIndexByte(name, '_')+1:])
			return fmt.Errorf("environment variable %s has no effect; list the %s in the configuration file", name, what)
		case !slices.Contains(keys, name):
			near := slices.MinFunc(keys, func(a, b string) int { return distance(name, a) - distance(name, b) })
			return fmt.Errorf("environment variable %s is no key of the configuration; did you mean %s? docs/configuration.md lists the keys", name, near)
		}
	}
	return nil
}

// distance is how many letters have to be put in, taken out or changed to make
// b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func quoteDuration(field reflect.Value, text string) string {
	if field.Type() == reflect.TypeFor[time.Duration]() {
		return fmt.Sprintf("%q", text)
	}
	return text
}
