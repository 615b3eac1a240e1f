package certs

import (
	"fmt"
	"time"
)

// Soon is how long before its end a certificate is warned of.
const Soon = 14 * 24 * time.Hour

// warnEvery is how often that is said in the log.
const warnEvery = 24 * time.Hour

// Until is when the certificate that is shown now ends.
func (s *Store) Until() time.Time { return s.now.Load().pair.Leaf.NotAfter }

// Door is whose certificate it is.
func (s *Store) Door() string { return s.files.Door }

// Warning says that the certificate ends soon, has ended or has not begun; ""
// if it is well.
func (s *Store) Warning(now time.Time) string {
	leaf := s.now.Load().pair.Leaf
	file := s.files.key("cert_file") + " " + s.files.Cert
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Sprintf("the certificate in %s has ended on %s: whoever connects anew refuses it; replace the file", file, day(leaf.NotAfter))
	case now.Before(leaf.NotBefore):
		return fmt.Sprintf("the certificate in %s begins only on %s: whoever connects before refuses it; look at this host's clock", file, day(leaf.NotBefore))
	case leaf.NotAfter.Sub(now) < Soon:
		return fmt.Sprintf("the certificate in %s ends on %s; replace the file before", file, day(leaf.NotAfter))
	}
	return ""
}

func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }

// warn says a [Store.Warning] in the log, once a day.
func (s *Store) warn(now time.Time) {
	if text := s.Warning(now); text != "" && now.Sub(s.warned) >= warnEvery {
		s.warned = now
		s.log.Warn("a certificate needs to be replaced", "door", s.files.Door, "because", text)
	}
}
