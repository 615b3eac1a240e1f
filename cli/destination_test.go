package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/yardmaster-dev/yardmaster/cli/usererror"
)

// TestMain removes the contexts and NATS_* variables of the user from the
// environment.
func TestMain(m *testing.M) {
	home, err := os.MkdirTemp("", "yard-cli")
	if err != nil {
		panic(err)
	}
	for _, set := range os.Environ() {
		if name, _, _ := strings.Cut(set, "="); strings.HasPrefix(name, "NATS_") {
			os.Unsetenv(name)
		}
	}
	os.Setenv("XDG_CONFIG_HOME", home)
	code := m.Run()
	os.RemoveAll(home)
	os.Exit(code)
}

// startServer starts a NATS server with a responder for the status of a node, and
// returns its URL.
func startServer(t *testing.T, o *server.Options, own ...nats.Option) string {
	t.Helper()
	o.Host, o.Port, o.NoSigs, o.NoLog = "127.0.0.1", -1, true, true
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("server not ready")
	}
	nc, err := nats.Connect(s.ClientURL(), own...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	_, err = nc.Subscribe("yard.status", func(m *nats.Msg) { _ = m.Respond([]byte(`{"node":"n1","readiness":{"ready":true}}`)) })
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return s.ClientURL()
}

// writeContext writes a context of the nats CLI, and returns the configuration
// directory that it sets in the environment.
func writeContext(t *testing.T, name string, fields map[string]any) string {
	t.Helper()
	home := t.TempDir()
	text, err := json.Marshal(fields)
	if err == nil {
		err = os.MkdirAll(filepath.Join(home, "nats", "context"), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(home, "nats", "context", name+".json"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CONFIG_HOME", home)
	return home
}

func write(t *testing.T, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Every kind of login works by variables and by a context; without credentials
// the error states that they are missing.
func TestLogin(t *testing.T) {
	seedFile, public := nkeySeed(t)
	creds, operated := operatorMode(t)
	ca := newIssuer(t)
	cert, key := ca.issue(t, "client")
	secured := ca.serverTLS(t)
	for _, tt := range []struct {
		name      string
		opts      *server.Options
		own       []nats.Option
		variables map[string]string
		context   map[string]any
	}{
		{"user", &server.Options{Username: "ann", Password: "sesame"}, []nats.Option{nats.UserInfo("ann", "sesame")},
			map[string]string{"NATS_USER": "ann", "NATS_PASSWORD": "sesame"}, map[string]any{"user": "ann", "password": "sesame"}},
		{"token", &server.Options{Authorization: "sesame"}, []nats.Option{nats.Token("sesame")},
			map[string]string{"NATS_TOKEN": "sesame"}, map[string]any{"token": "sesame"}},
		{"token as user", &server.Options{Authorization: "sesame"}, []nats.Option{nats.Token("sesame")},
			map[string]string{"NATS_USER": "sesame"}, map[string]any{"token": "sesame"}},
		{"nkey", &server.Options{Nkeys: []*server.NkeyUser{{Nkey: public}}}, []nats.Option{mustOption(nats.NkeyOptionFromSeed(seedFile))},
			map[string]string{"NATS_NKEY": seedFile}, map[string]any{"nkey": seedFile}},
		{"creds", operated, []nats.Option{nats.UserCredentials(creds)},
			map[string]string{"NATS_CREDS": creds}, map[string]any{"creds": "file://" + creds}},
		{"certificate", &server.Options{TLS: true, TLSVerify: true, TLSConfig: secured, TLSTimeout: 5}, []nats.Option{nats.ClientCert(cert, key), nats.RootCAs(ca.file)},
			map[string]string{"NATS_CERT": cert, "NATS_KEY": key, "NATS_CA": ca.file}, map[string]any{"cert": cert, "key": key, "ca": ca.file}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := startServer(t, tt.opts, tt.own...)
			t.Run("nothing", func(t *testing.T) {
				got := runLine(t, "", "health", "--server", url)
				code := usererror.CodeFailed
				if tt.name == "certificate" {
					code = usererror.CodeNotReady // there is no connection
				}
				if got.code != code || tt.name != "certificate" && !strings.Contains(got.err, "requires credentials, and none are given") {
					t.Errorf("without credentials: %+v", got)
				}
			})
			t.Run("variables", func(t *testing.T) {
				t.Setenv("NATS_URL", url)
				for name, value := range tt.variables {
					t.Setenv(name, value)
				}
				wantReady(t, runLine(t, "", "health"))
			})
			t.Run("context", func(t *testing.T) {
				tt.context["url"] = url
				writeContext(t, "prod", tt.context)
				wantReady(t, runLine(t, "", "health", "--context", "prod"))
			})
		})
	}
}

func wantReady(t *testing.T, got cmdResult) {
	t.Helper()
	if got.code != 0 || got.out != "ready\n" {
		t.Errorf("got %+v", got)
	}
}

func mustOption(o nats.Option, err error) nats.Option {
	if err != nil {
		panic(err)
	}
	return o
}

// A context may set tls_first and an inbox prefix.
func TestLogin_HandshakeFirst(t *testing.T) {
	ca := newIssuer(t)
	cert, key := ca.issue(t, "client")
	own := []nats.Option{nats.ClientCert(cert, key), nats.RootCAs(ca.file), nats.TLSHandshakeFirst()}
	url := startServer(t, &server.Options{TLS: true, TLSVerify: true, TLSConfig: ca.serverTLS(t), TLSTimeout: 5, TLSHandshakeFirst: true}, own...)
	writeContext(t, "prod", map[string]any{"url": url, "cert": cert, "key": key, "ca": ca.file, "tls_first": true, "inbox_prefix": "_INBOX_ann"})
	wantReady(t, runLine(t, "", "health", "--context", "prod"))
}

// The error for an unusable context names its file.
func TestContext_Invalid(t *testing.T) {
	for _, tt := range []struct {
		name   string
		fields map[string]any
		want   string
	}{
		{"nsc", map[string]any{"nsc": "nsc://a/b/c"}, "its nsc refers to the program nsc"},
		{"proxy", map[string]any{"socks_proxy": "socks5://a:1"}, "refers to a proxy"},
		{"windows", map[string]any{"windows_cert_store": "user"}, "refers to a Windows certificate store"},
		{"domain", map[string]any{"jetstream_domain": "hub"}, "refers to a JetStream domain"},
		{"vault", map[string]any{"creds": "op://vault/item"}, "its creds refers to op://"},
		{"secret", map[string]any{"user": "ann", "password": "env://SECRET"}, "its password refers to env://"},
		{"half", map[string]any{"cert": "/c.pem"}, "cert requires key"},
		{"mistyped", map[string]any{"url": 7}, "cannot be read: url must be a string, and is a number; "},
		{"mistyped choice", map[string]any{"tls_first": "yes"}, "cannot be read: tls_first must be true or false, and is a string; "},
		{"gone", map[string]any{"creds": "~/nowhere.creds"}, "the creds file of context prod, file "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			writeContext(t, "prod", tt.fields)
			got := runLine(t, "", "health", "--context", "prod")
			if got.code == 0 || !strings.Contains(got.err, tt.want) || !strings.Contains(got.err, "context prod, file ") || !strings.Contains(got.err, "; ") {
				t.Errorf("got %+v", got)
			}
		})
	}
	writeContext(t, "prod", map[string]any{})
	for name, want := range map[string]string{
		"staging": "there is no context staging", "../prod": `"../prod" is not the name of a context`,
	} {
		if got := runLine(t, "", "health", "--context", name); got.code == 0 || !strings.Contains(got.err, want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	url := startServer(t, &server.Options{Authorization: "sesame"}, nats.Token("sesame"))
	writeContext(t, "prod", map[string]any{"url": url, "token": "guess"})
	if got := runLine(t, "", "health", "--context", "prod"); got.code == 0 || !strings.Contains(got.err, "refuses the credentials of context prod, file ") || strings.Contains(got.err, "guess") {
		t.Errorf("a wrong token: %+v", got)
	}
}

// The error for unusable credentials names their source, and no connection is
// made.
func TestLogin_Unusable(t *testing.T) {
	file := write(t, "other.txt", []byte("no key\n"))
	for _, tt := range []struct {
		variables map[string]string
		want      string
	}{
		{map[string]string{"NATS_CREDS": t.TempDir()}, "the variables NATS_*: creds "},
		{map[string]string{"NATS_CREDS": file}, "the variables NATS_*: creds " + file + " cannot be used: "},
		{map[string]string{"NATS_NKEY": file}, "the variables NATS_*: nkey " + file + " cannot be used: "},
		{map[string]string{"NATS_JWT": "abc", "NATS_SEED": "abc"}, "the variables NATS_*: the user's JWT and seed cannot be used: "},
		{map[string]string{"NATS_CA": file}, "ca " + file + " cannot be used: "},
		{map[string]string{"NATS_CERT": file, "NATS_KEY": file}, "cert " + file + " with key " + file + " cannot be used: "},
	} {
		t.Run("", func(t *testing.T) {
			t.Setenv("NATS_URL", "nats://127.0.0.1:1")
			for name, value := range tt.variables {
				t.Setenv(name, value)
			}
			got := runLine(t, "", "health")
			if got.code != 1 || !strings.Contains(got.err, tt.want) || !strings.Contains(got.err, "no connection was made") {
				t.Errorf("%v: %+v", tt.variables, got)
			}
		})
	}
	writeContext(t, "prod", map[string]any{"inbox_prefix": "a.*"})
	if got := runLine(t, "", "health", "--context", "prod"); got.code != 1 || !strings.Contains(got.err, "inbox_prefix a.* cannot be used") {
		t.Errorf("a bad prefix: %+v", got)
	}
}

// A timeout below a millisecond is a usage error.
func TestTimeout_Invalid(t *testing.T) {
	for _, d := range []string{"0", "-1s", "1ns"} {
		if got := runLine(t, "", "health", "--timeout", d, "--server", "nats://127.0.0.1:1"); got.code != usererror.CodeUsage || !strings.Contains(got.err, "--timeout is ") {
			t.Errorf("%s: %+v", d, got)
		}
	}
}

func nkeySeed(t *testing.T) (file, public string) {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, _ := pair.Seed()
	public, _ = pair.PublicKey()
	return write(t, "user.nk", seed), public
}

// operatorMode returns a credentials file, and the options of a server that
// accepts it by its JWT.
func operatorMode(t *testing.T) (creds string, o *server.Options) {
	t.Helper()
	pairs, keys := make([]nkeys.KeyPair, 3), make([]string, 3)
	for i, make := range []func() (nkeys.KeyPair, error){nkeys.CreateOperator, nkeys.CreateAccount, nkeys.CreateUser} {
		var err error
		if pairs[i], err = make(); err != nil {
			t.Fatal(err)
		}
		keys[i], _ = pairs[i].PublicKey()
	}
	operator, account := pairs[0], pairs[1]
	claims := jwt.NewOperatorClaims(keys[0])
	if _, err := claims.Encode(operator); err != nil {
		t.Fatal(err)
	}
	accountJWT, err := jwt.NewAccountClaims(keys[1]).Encode(operator)
	if err != nil {
		t.Fatal(err)
	}
	userJWT, err := jwt.NewUserClaims(keys[2]).Encode(account)
	if err != nil {
		t.Fatal(err)
	}
	seed, _ := pairs[2].Seed()
	text, err := jwt.FormatUserConfig(userJWT, seed)
	if err != nil {
		t.Fatal(err)
	}
	resolver := &server.MemAccResolver{}
	if err := resolver.Store(keys[1], accountJWT); err != nil {
		t.Fatal(err)
	}
	return write(t, "user.creds", text), &server.Options{TrustedOperators: []*jwt.OperatorClaims{claims}, AccountResolver: resolver}
}

// exec without a directory needs a yard that is named: it does not change the one that
// happens to run on this host.
func TestExec_NamesNoYard(t *testing.T) {
	t.Setenv("NATS_URL", "")
	got := runLine(t, "", "exec", `{"command":"CaptureSnapshot"}`)
	if got.code != 1 || !strings.Contains(got.err, "name a directory with --state-dir, or a yard with --server or NATS_URL") {
		t.Errorf("%+v", got)
	}
	if got := runLine(t, "", "exec", `{"command":"CaptureSnapshot"}`, "--server", "127.0.0.1:1"); !strings.Contains(got.err, "no yard can be reached") {
		t.Errorf("with a server: %+v", got)
	}
}
