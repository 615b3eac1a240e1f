package config

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// envPrefix is the prefix of environment variables that override the file:
// YARD_NODE_NAME for [node] name.
const envPrefix = "YARD_"

// fromEnvironment overrides the keys of [Config.tables] that fit a variable. The variable
// is YARD_<TABLE>_<KEY>, with '_' for a dot in the table's name.
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
			if !ok || !fitsVariable(table.v.Field(i)) {
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

// secretKeys are variables whose value may be read from a file, because a variable
// is visible to everyone with access to the process or its container.
var secretKeys = []string{variable("cluster", "secret"), variable("http", "token"), variable("server", "token")}

// fileSuffix is the suffix of a variable that names such a file.
const fileSuffix = "_FILE"

// withSecretFiles returns a lookup that also reads the files of secrets. It strips
// newlines at the end of a file, which editors add.
func withSecretFiles(lookup func(string) (string, bool)) (func(string) (string, bool), error) {
	secrets := map[string]string{}
	for _, name := range secretKeys {
		path, ok := lookup(name + fileSuffix)
		if !ok {
			continue
		}
		if _, both := lookup(name); both {
			return nil, fmt.Errorf("environment variables %s and %s%s both set the same key; set one of them", name, name, fileSuffix)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("environment variable %s%s: %w; it must name a file that the node can read", name, fileSuffix, err)
		}
		secrets[name] = strings.TrimRight(string(text), "\r\n")
		if secrets[name] == "" {
			return nil, fmt.Errorf("environment variable %s%s: %s is empty; with an empty secret clients would not be authenticated", name, fileSuffix, path)
		}
	}
	return func(name string) (string, bool) {
		if secret, ok := secrets[name]; ok {
			return secret, true
		}
		return lookup(name)
	}, nil
}

// table is a table of the configuration whose keys the environment may override.
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
		{"server", reflect.ValueOf(&c.Server).Elem()},
		{"server.tls", reflect.ValueOf(&c.Server.TLS).Elem()},
		{"cluster.tls", reflect.ValueOf(&c.Cluster.TLS).Elem()},
		{"nats.tls", reflect.ValueOf(&c.NATS.TLS).Elem()}, {"http.tls", reflect.ValueOf(&c.HTTP.TLS).Elem()},
	}
}

// variable returns the name of the environment variable of a key.
func variable(table, key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(table, ".", "_")+"_"+key)
}

// fitsVariable reports whether the value of a key fits an environment variable.
func fitsVariable(field reflect.Value) bool {
	return field.Kind() != reflect.Struct && field.Kind() != reflect.Slice
}

// reservedVariables begin with the prefix but are not keys: they are for development
// tools and for runners.
var reservedVariables = []string{
	"YARD_PPROF", "YARD_WITNESS", "YARD_RUNNER", "YARD_BIN", "YARD_SOAK", "YARD_DRILL_DIR", "YARD_DRILL_WORK", "YARD_COMPOSE",
	"YARD_RRQ_PYTHON", "YARD_RRQ_TS", "YARD_RRQ_RUST",
}

// testVariablePrefix is the prefix of variables with which tests run their own binary.
const testVariablePrefix = envPrefix + "TEST_"

// checkEnvironment rejects variables with the prefix that are not keys, because they
// would silently have no effect.
func checkEnvironment(environment []string) error {
	var keys []string
	for _, t := range new(Config).tables() {
		for i := range t.v.NumField() {
			if fitsVariable(t.v.Field(i)) {
				keys = append(keys, variable(t.name, t.v.Type().Field(i).Tag.Get("toml")))
			}
		}
	}
	for _, name := range secretKeys {
		keys = append(keys, name+fileSuffix)
	}
	for key := range retiredKeys {
		keys = append(keys, retiredVariable(key))
	}
	for _, entry := range environment {
		name, _, _ := strings.Cut(entry, "=")
		switch {
		case !strings.HasPrefix(name, envPrefix), slices.Contains(reservedVariables, name), strings.HasPrefix(name, testVariablePrefix):
		case name == variable("cluster", "members"), name == variable("nats", "users"):
			plural := strings.ToLower(name[strings.LastIndexByte(name, '_')+1:])
			return fmt.Errorf("environment variable %s has no effect; list the %s in the configuration file", name, plural)
		case !slices.Contains(keys, name):
			near := slices.MinFunc(keys, func(a, b string) int { return editDistance(name, a) - editDistance(name, b) })
			return fmt.Errorf("environment variable %s is not a key of the configuration; did you mean %s? docs/reference/config.md lists the keys", name, near)
		}
	}
	return nil
}

// editDistance returns how many bytes have to be inserted, deleted or changed to turn a
// into b.
func editDistance(a, b string) int {
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

// quoteDuration quotes the text of a duration, which is a string in TOML.
func quoteDuration(field reflect.Value, text string) string {
	if field.Type() == reflect.TypeFor[time.Duration]() {
		return fmt.Sprintf("%q", text)
	}
	return text
}
