package connect

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

	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/cluster"
)

// natsContext is a context of the nats CLI: a file with a server's address and
// credentials. The fields of the second block are not supported and refused.
// ADR 38 has the reason why jsm.go does not read it.
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

// contextDir returns the directory of the contexts and of context.txt, which
// names the selected one.
func (s *Settings) contextDir() (string, error) {
	if home := s.Getenv("XDG_CONFIG_HOME"); home != "" {
		return filepath.Join(home, "nats"), nil
	}
	home := s.Getenv("HOME")
	if home == "" {
		return "", errors.New("neither XDG_CONFIG_HOME nor HOME is set")
	}
	return filepath.Join(home, ".config", "nats"), nil
}

// selectedContext returns the name of the context that 'nats context select' has
// selected, or "".
func (s *Settings) selectedContext() string {
	dir, err := s.contextDir()
	if err != nil {
		return ""
	}
	text, err := os.ReadFile(filepath.Join(dir, "context.txt"))
	if err != nil {
		return "" // none was ever selected
	}
	return strings.TrimSpace(string(text))
}

// readContext returns the connection settings in a context. name is the context's
// name, or the path of an existing file that ends in .json.
func (s *Settings) readContext(name string) (source, error) {
	file, err := s.contextFile(name)
	if err != nil {
		return source{}, err
	}
	origin := fmt.Sprintf("context %s, file %s", name, file)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return source{}, usererror.New(fmt.Sprintf("there is no context %s: %s does not exist", name, file), "'nats context ls' lists the contexts, 'nats context unselect' selects none")
	}
	var c natsContext
	if err == nil {
		err = c.decode(text)
	}
	if err != nil {
		return source{}, usererror.New(fmt.Sprintf("%s cannot be read: %v", origin, err), "correct it with 'nats context edit', or name the server with --server")
	}
	if problem := c.unsupported(); problem != "" {
		return source{}, usererror.New(fmt.Sprintf("%s: %s", origin, problem), "use a context without it, or name the server with --server")
	}
	for _, path := range []*string{&c.Creds, &c.NKey, &c.Cert, &c.Key, &c.CA} {
		*path = s.expand(*path)
	}
	return source{
		name: origin, url: c.URL,
		login: cluster.DialOptions{User: c.User, Password: c.Password, Token: c.Token, Creds: c.Creds, NKey: c.NKey, JWT: c.JWT, Seed: c.Seed},
		tls:   cluster.DialOptions{Cert: c.Cert, Key: c.Key, CA: c.CA, TLSFirst: c.TLSFirst, InboxPrefix: c.InboxPrefix},
	}, nil
}

// contextFile returns the path of the file that holds a context; name is that of
// readContext. The file need not exist.
func (s *Settings) contextFile(name string) (string, error) {
	if _, err := os.Stat(name); err == nil && strings.HasSuffix(name, ".json") {
		return name, nil
	}
	if name == "" || strings.Contains(name, "..") || strings.ContainsRune(name, filepath.Separator) {
		return "", usererror.Invalid(fmt.Sprintf("%q is not the name of a context", name), "'nats context ls' lists the contexts")
	}
	dir, err := s.contextDir()
	if err != nil {
		return "", usererror.New(fmt.Sprintf("context %s cannot be found: %v", name, err), "set one of them")
	}
	return filepath.Join(dir, "context", name+".json"), nil
}

// decode decodes the text of a context's file. The error of a value of the wrong type
// names the setting and the type it must have.
func (c *natsContext) decode(text []byte) error {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")) // some editors write a byte order mark
	err := json.Unmarshal(text, c)
	mistyped, ok := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case !ok:
		return err
	case mistyped.Field == "":
		return fmt.Errorf("it must be an object in braces, and is an %s", mistyped.Value)
	case mistyped.Type.Kind() == reflect.Bool:
		return fmt.Errorf("%s must be true or false, and is a %s", mistyped.Field, mistyped.Value)
	}
	return fmt.Errorf("%s must be a string, and is a %s", mistyped.Field, mistyped.Value)
}

// unsupported describes the first setting of the context that this program does
// not support. It returns "" if the program supports all of them.
func (c *natsContext) unsupported() string {
	for _, f := range []struct{ key, value, reason string }{
		{"nsc", c.NSC, "refers to the program nsc, which is not supported; name a credentials file in 'creds'"},
		{"socks_proxy", c.Proxy, "refers to a proxy, which is not supported"},
		{"windows_cert_store", c.CertStore, "refers to a Windows certificate store, which is not supported; name files in 'cert' and 'key'"},
		{"jetstream_domain", c.JSDomain, "refers to a JetStream domain, and a yard has none"},
		{"jetstream_api_prefix", c.JSPrefix, "refers to a JetStream API prefix, and a yard has none"},
	} {
		if f.value != "" {
			return fmt.Sprintf("its %s %s", f.key, f.reason)
		}
	}
	// A value may also be a URL that refers to a secret store. In a path, any
	// scheme but file:// is one. A secret may contain any text, so there only
	// the known schemes of references are refused.
	for _, f := range []struct{ key, value string }{
		{"creds", c.Creds}, {"nkey", c.NKey}, {"cert", c.Cert}, {"key", c.Key}, {"ca", c.CA},
	} {
		if scheme, _, ok := strings.Cut(f.value, "://"); ok && scheme != "file" {
			return fmt.Sprintf("its %s refers to %s://, which is not supported; name a file", f.key, scheme)
		}
	}
	for _, f := range []struct{ key, value string }{
		{"password", c.Password}, {"token", c.Token}, {"user_jwt", c.JWT}, {"user_seed", c.Seed},
	} {
		for _, scheme := range []string{"op://", "nsc://", "env://", "file://"} {
			if strings.HasPrefix(f.value, scheme) {
				return fmt.Sprintf("its %s refers to %s, which is not supported; give the value itself, or use 'creds'", f.key, scheme)
			}
		}
	}
	if (c.Cert == "") != (c.Key == "") {
		return "cert requires key, and one of them is missing"
	}
	return ""
}

// expand returns path with file:// removed and ~ and variables expanded.
func (s *Settings) expand(path string) string {
	path = os.Expand(strings.TrimPrefix(path, "file://"), s.Getenv)
	if rest, ok := strings.CutPrefix(path, "~"); ok && (rest == "" || rest[0] == '/') {
		return s.Getenv("HOME") + rest
	}
	return path
}
