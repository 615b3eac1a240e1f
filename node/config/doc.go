// Package config reads the configuration of a node: a TOML file, overridden by
// environment variables. It sets the defaults and validates every key, and names the
// remedy for each invalid one.
package config
