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

// A name becomes that of files, and a member's name that in the certificate.
var (
	clientName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$`)
	memberName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	hostName   = regexp.MustCompile(`^(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?$`)
)

// Validate says what is wrong with a name or a host.
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

// Keep writes the pair into two files, the key's for its owner alone. A file
// that is there is an error that is [fs.ErrExist], unless replace is set. The
// key goes first: who reads in between finds a pair that does not fit, and goes
// on with what it has.
func (p Pair) Keep(cert, key string, replace bool) error {
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
	if err := write(key, p.Key, 0o600); err != nil {
		return err
	}
	return write(cert, p.Cert, 0o644) // everybody is shown it
}

// write leaves the old file or the new one, never a part.
func write(name string, text []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // of what failed; the renamed one is gone
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
