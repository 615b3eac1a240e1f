package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/edge"
)

// User is a user of the NATS server, with its role and credentials.
type User struct {
	// Name of the user: letters, digits, '-' and '_', 1 to 64 bytes.
	Name string `toml:"name"`
	// Role is "producer", "worker", "viewer", "operator" or "admin"; "observer" is "viewer".
	Role string `toml:"role"`
	// Password in plain text or as a bcrypt hash. Set one of this, PasswordFile and NKey.
	Password edge.Secret `toml:"password"`
	// PasswordFile is a file that holds the password and nothing else.
	PasswordFile string `toml:"password_file"`
	// NKey is the public key of the user's nkey.
	NKey string `toml:"nkey"`
	// Queues that a producer may enqueue into, and whose jobs a producer or worker may read. Default: all.
	Queues []string `toml:"queues"`
}

// HTTPUser is a user of the HTTP server, with its role and token.
type HTTPUser struct {
	// Name of the user: letters, digits, '-' and '_', 1 to 64 bytes.
	Name string `toml:"name"`
	// Role is "producer", "worker", "viewer", "operator" or "admin"; "observer" is "viewer".
	Role string `toml:"role"`
	// Token is the bearer token. Set this or TokenFile.
	Token edge.Secret `toml:"token"`
	// TokenFile is a file that holds the token and nothing else.
	TokenFile string `toml:"token_file"`
	// Queues that a producer may enqueue into, and whose jobs a producer or worker may read. Default: all.
	Queues []string `toml:"queues"`
}

// tokenUser is the name of the admin whose token is http.token.
const tokenUser = "token"

// TokenUser is a user of HTTP with its token.
type TokenUser struct {
	embedded.User
	Token string
}

// ServerUsers returns the configured users for the HTTP server, with an admin for
// Token. It reads token files again at each call.
func (c *HTTP) ServerUsers() ([]TokenUser, error) {
	var users []TokenUser
	if c.Token != "" {
		users = append(users, TokenUser{embedded.User{Name: tokenUser, Role: embedded.Admin}, string(c.Token)})
	}
	for _, u := range c.Users {
		token, err := secretOrFile("token", string(u.Token), u.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("user %s %w", u.Name, err)
		}
		user := TokenUser{embedded.User{Name: u.Name, Role: embedded.Role(u.Role), Queues: u.Queues}, token}
		if err := user.ValidateToken(token); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(users, func(other TokenUser) bool { return other.Name == user.Name || other.Token == token }) {
			return nil, fmt.Errorf("user %s, or its token, is defined twice", u.Name)
		}
		users = append(users, user)
	}
	if c.Anonymous != "" && !slices.Contains(embedded.Roles, embedded.Role(c.Anonymous)) {
		return nil, fmt.Errorf("anonymous has the role %q; must be producer, worker, viewer, operator or admin, or empty to refuse such requests", c.Anonymous)
	}
	if c.Anonymous != "" && len(users) == 0 && c.Anonymous != string(embedded.Operator) && c.Anonymous != string(embedded.Admin) {
		return nil, errors.New("anonymous needs users or http.token: without any, every request is an admin's")
	}
	return users, nil
}

// secretOrFile returns a secret that is given as text or in a file, but not both. It
// removes line ends from the end of a file.
func secretOrFile(key, text, path string) (string, error) {
	if path == "" {
		return text, nil
	}
	if text != "" {
		return "", fmt.Errorf("has a %s and a %s_file; give one of them", key, key)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s_file: %w; it must name a file that the node can read", key, err)
	}
	if text = strings.TrimRight(string(content), "\r\n"); text == "" {
		return "", fmt.Errorf("%s_file %s is empty", key, path)
	}
	return text, nil
}

// ServerUsers returns the configured users for the NATS server. It reads password files
// again at each call.
func (c *NATS) ServerUsers() ([]embedded.User, error) {
	var users []embedded.User
	for _, u := range c.Users {
		password, err := secretOrFile("password", string(u.Password), u.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("user %s %w", u.Name, err)
		}
		users = append(users, embedded.User{
			Name: u.Name, Role: embedded.Role(u.Role), Password: password, NKey: u.NKey, Queues: u.Queues,
		})
	}
	return users, embedded.ValidateUsers(users, embedded.Role(c.Anonymous))
}
