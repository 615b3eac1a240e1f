package config

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/similar"
)

// envPrefix is the prefix of environment variables that override the file:
// YARD_NODE_NAME for [node] name.
const envPrefix = "YARD_"

// variable is an environment variable and the key that it overrides.
type variable struct {
	name       string
	table, key string        // as in the file, such as "server.tls" and "cert_file"
	field      reflect.Value // the field of the Config for this key
}

// variableName returns the name of the environment variable of a key, such as
// YARD_SERVER_TLS_CERT_FILE for "server.tls.cert_file".
func variableName(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// variables returns the variables of all keys whose value fits one: tables and lists
// do not.
func (c *Config) variables() (all []variable) {
	for _, table := range []struct {
		name    string
		pointer any
	}{
		{"node", &c.Node}, {"nats", &c.NATS}, {"http", &c.HTTP}, {"raft", &c.Raft}, {"cluster", &c.Cluster},
		{"scheduler", &c.Scheduler}, {"disk", &c.Disk}, {"server", &c.Server}, {"server.tls", &c.Server.TLS},
		{"cluster.tls", &c.Cluster.TLS}, {"nats.tls", &c.NATS.TLS}, {"http.tls", &c.HTTP.TLS},
		{"retention.finished", &c.Retention.Finished}, {"retention.failed", &c.Retention.Failed}, {"retention.results", &c.Retention.Results},
		{"retention.events", &c.Retention.Events}, {"retention.logs", &c.Retention.Logs}, {"retention.index", &c.Retention.Index},
	} {
		fields := reflect.ValueOf(table.pointer).Elem()
		for i := range fields.NumField() {
			field, key := fields.Field(i), fields.Type().Field(i).Tag.Get("toml")
			if field.Kind() != reflect.Struct && field.Kind() != reflect.Slice {
				all = append(all, variable{variableName(table.name + "." + key), table.name, key, field})
			}
		}
	}
	return all
}

// applyEnvironment overrides the keys of c whose environment variable is set. lookup
// returns the value of a variable, and whether it is set.
func applyEnvironment(c *Config, lookup func(string) (string, bool)) error {
	lookup, err := withSecretFiles(lookup)
	if err != nil {
		return err
	}
	for _, v := range c.variables() {
		text, isSet := lookup(v.name)
		switch {
		case !isSet:
			continue
		case v.field.Kind() == reflect.String:
			v.field.SetString(text)
			continue
		case strings.ContainsAny(text, "\r\n"):
			return fmt.Errorf("environment variable %s=%q: must be one line", v.name, text)
		}
		value := text
		if v.field.Type() == reflect.TypeFor[time.Duration]() {
			value = fmt.Sprintf("%q", text) // a duration is a string in TOML
		}
		if _, err := decode("["+v.table+"]\n"+v.key+" = "+value, c); err != nil {
			if strings.Contains(err.Error(), "out of range") {
				return fmt.Errorf("environment variable %s=%q: the number is out of range", v.name, text)
			}
			return fmt.Errorf("environment variable %s=%q: must be %s", v.name, text, expectedText(v.field.Type()))
		}
	}
	return nil
}

// expectedText describes the values that a variable accepts for a field of type t.
func expectedText(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a number with a unit, such as 30s or 1d"
	case t.Kind() == reflect.Bool:
		return expectedValues["boolean"]
	case t.Kind() == reflect.Float64:
		return expectedValues["float"]
	}
	return expectedValues["integer"]
}

// secretKeys are variables whose value may be read from a file, because a variable
// is visible to everyone with access to the process or its container.
var secretKeys = []string{variableName("cluster.secret"), variableName("http.token"), variableName("server.token")}

// fileSuffix is the suffix of a variable that names such a file.
const fileSuffix = "_FILE"

// withSecretFiles returns a function like lookup that returns, for a secret whose
// variable with fileSuffix is set, the content of the file that it names. Newlines at the
// end of the file, which editors add, are not part of the secret.
func withSecretFiles(lookup func(string) (string, bool)) (func(string) (string, bool), error) {
	secrets := map[string]string{}
	for _, name := range secretKeys {
		path, isSet := lookup(name + fileSuffix)
		if !isSet {
			continue
		}
		if _, isSet := lookup(name); isSet {
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
	for _, v := range new(Config).variables() {
		keys = append(keys, v.name)
	}
	for _, name := range secretKeys {
		keys = append(keys, name+fileSuffix)
	}
	for key := range retiredKeys {
		keys = append(keys, variableName(key))
	}
	for _, entry := range environment {
		name, _, _ := strings.Cut(entry, "=")
		switch {
		case !strings.HasPrefix(name, envPrefix), slices.Contains(reservedVariables, name), strings.HasPrefix(name, testVariablePrefix):
		case name == variableName("cluster.members"), name == variableName("nats.users"):
			plural := strings.ToLower(name[strings.LastIndexByte(name, '_')+1:])
			return fmt.Errorf("environment variable %s has no effect; list the %s in the configuration file", name, plural)
		case !slices.Contains(keys, name):
			near := slices.MinFunc(keys, func(a, b string) int { return similar.Distance(name, a) - similar.Distance(name, b) })
			return fmt.Errorf("environment variable %s is not a key of the configuration; did you mean %s? docs/reference/config.md lists the keys", name, near)
		}
	}
	return nil
}

// serviceVariable matches the environment variables, as name=value, that Kubernetes sets in each
// container for a Service whose name begins with "yard", such as YARD_PORT=tcp://10.0.0.7:9876 or
// YARD_SERVICE_HOST=10.0.0.7.
var serviceVariable = regexp.MustCompile(`^` + envPrefix + `(\w+_)?(` +
	`SERVICE_HOST=[\da-f.:]+|SERVICE_PORT(_\w+)?=\d+|` +
	`PORT(_\d+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://\S+|` +
	`PORT_\d+_(TCP|UDP|SCTP)_(PROTO=(tcp|udp|sctp)|PORT=\d+|ADDR=[\da-f.:]+))$`)

// splitServiceVariables returns the environment without the variables of Kubernetes Services, and the
// names of those variables.
func splitServiceVariables(environment []string) (rest, services []string) {
	for _, entry := range environment {
		if name, _, _ := strings.Cut(entry, "="); serviceVariable.MatchString(entry) {
			services = append(services, name)
		} else {
			rest = append(rest, entry)
		}
	}
	return rest, services
}

// lookupIn returns a function that looks up variables in an environment, as [os.LookupEnv] does.
func lookupIn(environment []string) func(string) (string, bool) {
	values := make(map[string]string, len(environment))
	for _, entry := range environment {
		name, value, _ := strings.Cut(entry, "=")
		values[name] = value
	}
	return func(name string) (string, bool) { value, ok := values[name]; return value, ok }
}
