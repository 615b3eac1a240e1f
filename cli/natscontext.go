package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"yardmaster/cluster"
)

// natsContext is a file in which NATS' own tools keep where a server is and how
// to log in there, as far as this program can use it.
type natsContext struct {
	URL         string `json:"url"`
	User        string `json:"user"`
	Password    string `json:"password"`
	Token       string `json:"token"`
	Creds       string `json:"creds"`
	NKey        string `json:"nkey"`
	JWT         string `json:"user_jwt"`
	Seed        string `json:"user_seed"`
	Cert        string `json:"cert"`
	Key         string `json:"key"`
	CA          string `json:"ca"`
	TLSFirst    bool   `json:"tls_first"`
	InboxPrefix string `json:"inbox_prefix"`

	NSC       string `json:"nsc"`
	Proxy     string `json:"socks_proxy"`
	CertStore string `json:"windows_cert_store"`
	JSDomain  string `json:"jetstream_domain"`
	JSPrefix  string `json:"jetstream_api_prefix"`
}

// contextHome is the directory of contexts and of the file that says which of
// them is selected.
func (a *app) contextHome() (string, error) {
	if home := a.getenv("XDG_CONFIG_HOME"); home != "" {
		return filepath.Join(home, "nats"), nil
	}
	home := a.getenv("HOME")
	if home == "" {
		return "", errors.New("neither XDG_CONFIG_HOME nor HOME is set")
	}
	return filepath.Join(home, ".config", "nats"), nil
}

// selectedContext is the context that 'nats context select' has chosen; "" if
// there is none.
func (a *app) selectedContext() string {
	home, err := a.contextHome()
	if err != nil {
		return ""
	}
	text, err := os.ReadFile(filepath.Join(home, "context.txt"))
	if err != nil {
		return "" // nobody has ever selected one
	}
	return strings.TrimSpace(string(text))
}

// readContext reads a context by its name, or by its path if that ends in
// .json. origin tells people where what it says comes from.
func (a *app) readContext(name string) (c natsContext, origin string, err error) {
	file := name
	if !strings.HasSuffix(name, ".json") || !exists(name) {
		if name == "" || strings.Contains(name, "..") || strings.ContainsRune(name, filepath.Separator) {
			return c, "", &problem{what: fmt.Sprintf("%q is no name of a context", name), do: "'nats context ls' lists those there are", usage: true}
		}
		home, err := a.contextHome()
		if err != nil {
			return c, "", &problem{what: fmt.Sprintf("context %s cannot be looked for: %v", name, err), do: "set one of them"}
		}
		file = filepath.Join(home, "context", name+".json")
	}
	origin = fmt.Sprintf("context %s, file %s", name, file)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return c, origin, &problem{what: fmt.Sprintf("there is no context %s: %s does not exist", name, file), do: "'nats context ls' lists those there are, 'nats context unselect' chooses none"}
	}
	if err == nil {
		err = json.Unmarshal(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")), &c) // some editors begin a file so
	}
	if mistyped := (*json.UnmarshalTypeError)(nil); errors.As(err, &mistyped) && mistyped.Field != "" {
		err = fmt.Errorf("its %s has to be %s, and is a %s", mistyped.Field, jsonWord(mistyped.Type.Kind()), mistyped.Value)
	} else if mistyped != nil {
		err = fmt.Errorf("it has to be an object in braces, and is an %s", mistyped.Value)
	}
	if err != nil {
		return c, origin, &problem{what: fmt.Sprintf("%s cannot be read: %v", origin, err), do: "'nats context edit' mends it, or name the server with --server"}
	}
	if what := c.unusable(); what != "" {
		return c, origin, &problem{what: fmt.Sprintf("%s: %s", origin, what), do: "give this program a context without it, or name the server with --server"}
	}
	for _, path := range []*string{&c.Creds, &c.NKey, &c.Cert, &c.Key, &c.CA} {
		*path = a.expand(*path)
	}
	return c, origin, nil
}

// jsonWord is what JSON calls a kind of value that a context has.
func jsonWord(kind reflect.Kind) string {
	if kind == reflect.Bool {
		return "true or false"
	}
	return "a text"
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// unusable says what of a context this program cannot do; what only concerns
// how other tools look does not matter.
func (c *natsContext) unusable() string {
	for _, f := range []struct{ key, value, why string }{
		{"nsc", c.NSC, "asks the program nsc for credentials, which is not done here; 'creds' names a file of them"},
		{"socks_proxy", c.Proxy, "leads through a proxy, which is not done here"},
		{"windows_cert_store", c.CertStore, "keeps certificates where only Windows finds them; 'cert' and 'key' name files"},
		{"jetstream_domain", c.JSDomain, "leads into another JetStream domain, and a yard lives in its own"},
		{"jetstream_api_prefix", c.JSPrefix, "leads to JetStream under another name, and a yard's is plain"},
	} {
		if f.value != "" {
			return fmt.Sprintf("its %s %s", f.key, f.why)
		}
	}
	// Values may also name a store of secrets, by a scheme. A path may say
	// file://, and nothing else; what is a secret itself may look like anything,
	// so only the schemes that are known to be references are taken for such.
	for _, f := range []struct{ key, value string }{
		{"creds", c.Creds}, {"nkey", c.NKey}, {"cert", c.Cert}, {"key", c.Key}, {"ca", c.CA},
	} {
		if scheme, _, ok := strings.Cut(f.value, "://"); ok && scheme != "file" {
			return fmt.Sprintf("its %s is kept at %s://, which is not asked here; name a file", f.key, scheme)
		}
	}
	for _, f := range []struct{ key, value string }{
		{"password", c.Password}, {"token", c.Token}, {"user_jwt", c.JWT}, {"user_seed", c.Seed},
	} {
		for _, scheme := range []string{"op://", "nsc://", "env://", "file://"} {
			if strings.HasPrefix(f.value, scheme) {
				return fmt.Sprintf("its %s is kept at %s, which is not asked here; write it out, or use 'creds'", f.key, scheme)
			}
		}
	}
	if (c.Cert == "") != (c.Key == "") {
		return "cert and key go together, and it has one of them"
	}
	return ""
}

// expand gives a path that may begin with ~ or file:// and name variables.
func (a *app) expand(path string) string {
	path = os.Expand(strings.TrimPrefix(path, "file://"), a.getenv)
	if rest, ok := strings.CutPrefix(path, "~"); ok && (rest == "" || rest[0] == '/') {
		return a.getenv("HOME") + rest
	}
	return path
}

// login takes from a context what it says of logging in.
func (c *natsContext) login() cluster.DialOptions {
	return cluster.DialOptions{
		User: c.User, Password: c.Password, Token: c.Token, Creds: c.Creds, NKey: c.NKey, JWT: c.JWT, Seed: c.Seed,
	}
}
