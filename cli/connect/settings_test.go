package connect

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Address and login come from the first source that has them: the flag, the named
// context, the variables, the selected context, this host.
func TestDestination(t *testing.T) {
	fields := map[string]any{"url": "nats://prod:4222", "user": "ann", "password": "p", "color_scheme": "red", "description": "d"}
	for _, tt := range []struct {
		name          string
		server, named string
		selected      bool
		env           map[string]string
		url, user     string
		shown         string // after the file's directory is cut out
	}{
		{name: "nothing", url: defaultServer, shown: defaultServer},
		{name: "variable", env: map[string]string{"NATS_URL": "nats://env:1"}, url: "nats://env:1", shown: "nats://env:1 (from NATS_URL)"},
		{name: "selected", selected: true, url: "nats://prod:4222", user: "ann", shown: "nats://prod:4222 (from context prod, file prod.json)"},
		{name: "selected, flag", selected: true, server: "nats://a:1", url: "nats://a:1", shown: "nats://a:1"},
		{name: "selected, variable", selected: true, env: map[string]string{"NATS_URL": "nats://env:1"}, url: "nats://env:1", shown: "nats://env:1 (from NATS_URL)"},
		{name: "selected, user", selected: true, env: map[string]string{"NATS_USER": "bob", "NATS_PASSWORD": "b"}, url: "nats://prod:4222", user: "bob", shown: "nats://prod:4222 (from context prod, file prod.json)"},
		{name: "named, flag", named: "prod", server: "nats://a:1", url: "nats://a:1", user: "ann", shown: "nats://a:1"},
		{name: "named, variables", named: "prod", env: map[string]string{"NATS_URL": "nats://env:1", "NATS_USER": "bob", "NATS_PASSWORD": "b"},
			url: "nats://prod:4222", user: "ann", shown: "nats://prod:4222 (from context prod, file prod.json)"},
		{name: "named by variable", env: map[string]string{"NATS_CONTEXT": "prod"}, url: "nats://prod:4222", user: "ann", shown: "nats://prod:4222 (from context prod, file prod.json)"},
		{name: "named by variable, variable", env: map[string]string{"NATS_CONTEXT": "prod", "NATS_URL": "nats://env:1"}, url: "nats://env:1", user: "ann", shown: "nats://env:1 (from NATS_URL)"},
		{name: "secret", server: "nats://ann:sesame@a:1,nats://b:2", url: "nats://ann:sesame@a:1,nats://b:2", shown: "nats://…@a:1,nats://b:2"},
		{name: "secret, short", server: "ann:ses@me@a:1", url: "ann:ses@me@a:1", shown: "…@a:1"},
		{name: "others' files", named: "prod", env: map[string]string{"NATS_CREDS": "/nowhere.creds"},
			url: "nats://prod:4222", user: "ann", shown: "nats://prod:4222 (from context prod, file prod.json)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			home := t.TempDir()
			text, err := json.Marshal(fields)
			if err == nil {
				err = os.MkdirAll(filepath.Join(home, "nats", "context"), 0o700)
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(home, "nats", "context", "prod.json"), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			if tt.selected {
				if err := os.WriteFile(filepath.Join(home, "nats", "context.txt"), []byte("prod\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s := &Settings{flags: source{name: flagSource, url: tt.server}, context: tt.named, Getenv: func(name string) string {
				if name == "XDG_CONFIG_HOME" {
					return home
				}
				return tt.env[name]
			}}
			d, err := s.destination()
			if err != nil {
				t.Fatal(err)
			}
			shown := strings.ReplaceAll(d.String(), filepath.Join(home, "nats", "context")+"/", "")
			if d.url != tt.url || d.opts.User != tt.user || shown != tt.shown {
				t.Errorf("got %s, user %q, shown as %s", d.url, d.opts.User, shown)
			}
		})
	}
}
