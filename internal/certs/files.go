package certs

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
)

// A name is also used as a file name; a member's name also becomes a DNS name in the certificate.
var (
	clientName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$`)
	memberName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	hostName   = regexp.MustCompile(`^(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?$`)
)

// Validate returns an error unless the name can be a file's name, and a member's also a
// DNS name, and every host is a host name or an address.
func (l Leaf) Validate() error {
	if l.Member && !memberName.MatchString(l.Name) {
		return fmt.Errorf("name %q: must be a member's, 1 to 63 lower-case letters, digits and '-', with no '-' at its ends", l.Name)
	}
	if !clientName.MatchString(l.Name) {
		return fmt.Errorf("name %q: must be 1 to 63 letters, digits, '.', '_', '-' and '@', beginning with a letter or digit", l.Name)
	}
	for _, host := range l.Hosts {
		if net.ParseIP(host) == nil && !hostName.MatchString(host) {
			return fmt.Errorf("host %q: must be a name or an address, without a port", host)
		}
	}
	return nil
}

// WriteFiles writes the certificate and the key to two files; only the owner may
// read the key's. Unless replace is set, an existing file is an error that wraps
// [fs.ErrExist]. The key is written first: a process that reads in between finds a
// pair that does not match, and keeps the one it has.
func (p Pair) WriteFiles(cert, key string, replace bool) error {
	if !replace {
		for _, name := range []string{cert, key} {
			if _, err := os.Lstat(name); err == nil {
				return fmt.Errorf("%s: %w", name, fs.ErrExist)
			}
		}
	}
	if err := os.MkdirAll(filepath.Dir(cert), 0o700); err != nil {
		return err
	}
	if err := writeFile(key, p.Key, 0o600); err != nil {
		return err
	}
	return writeFile(cert, p.Cert, 0o644) // it is public
}

// writeFile replaces a file atomically.
func writeFile(name string, text []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // after a failure; a renamed file no longer has this name
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
