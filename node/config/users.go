package config

import (
	"fmt"
	"os"
	"strings"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/edge"
)

// User is a user of the NATS server, with its role and credentials.
type User struct {
	// Name of the user: letters, digits, '-' and '_', 1 to 64 bytes.
	Name string `toml:"name"`
	// Role is "producer", "worker", "observer" or "operator".
	Role string `toml:"role"`
	// Password in plain text or as a bcrypt hash. Set one of this, PasswordFile and NKey.
	Password edge.Secret `toml:"password"`
	// PasswordFile is a file that holds the password and nothing else.
	PasswordFile string `toml:"password_file"`
	// NKey is the public key of the user's nkey.
	NKey string `toml:"nkey"`
	// Queues that a producer may enqueue into. Default: all.
	Queues []string `toml:"queues"`
}

// ServerUsers returns the configured users for the NATS server. It reads password files
// again at each call.
func (c *NATS) ServerUsers() ([]embedded.User, error) {
	var users []embedded.User
	for _, u := range c.Users {
		password := string(u.Password)
		if u.PasswordFile != "" {
			if password != "" {
				return nil, fmt.Errorf("user %s has a password and a password_file; give one of them", u.Name)
			}
			text, err := os.ReadFile(u.PasswordFile)
			if err != nil {
				return nil, fmt.Errorf("user %s: password_file: %w; it must name a file that the node can read", u.Name, err)
			}
			if password = strings.TrimRight(string(text), "\r\n"); password == "" {
				return nil, fmt.Errorf("user %s: password_file %s is empty", u.Name, u.PasswordFile)
			}
		}
		users = append(users, embedded.User{
			Name: u.Name, Role: embedded.Role(u.Role), Password: password, NKey: u.NKey, Queues: u.Queues,
		})
	}
	return users, embedded.ValidateUsers(users, embedded.Role(c.Anonymous))
}
