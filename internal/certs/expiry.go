package certs

import (
	"context"
	"fmt"
	"time"
)

// WarnBefore is how long before a certificate expires [Store.Warning] reports it.
const WarnBefore = 14 * 24 * time.Hour

// warnInterval is the minimum time between two log lines with the warning.
const warnInterval = 24 * time.Hour

// NotAfter returns when the current certificate expires.
func (s *Store) NotAfter() time.Time { return s.current.Load().cert.Leaf.NotAfter }

// Listener returns the name of the listener that uses the certificate.
func (s *Store) Listener() string { return s.files.Listener }

// Warning returns a text if the certificate expires soon, has expired or is not
// valid yet, and "" otherwise.
func (s *Store) Warning(now time.Time) string {
	leaf := s.current.Load().cert.Leaf
	file := s.files.key("cert_file") + " " + s.files.Cert
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Sprintf("the certificate in %s expired on %s: clients refuse it; replace the file", file, formatDate(leaf.NotAfter))
	case now.Before(leaf.NotBefore):
		return fmt.Sprintf("the certificate in %s is not valid before %s: clients refuse it; check this host's clock", file, formatDate(leaf.NotBefore))
	case leaf.NotAfter.Sub(now) < WarnBefore:
		return fmt.Sprintf("the certificate in %s expires on %s; replace the file before then", file, formatDate(leaf.NotAfter))
	}
	return ""
}

func formatDate(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }

// logWarning logs a [Store.Warning], at most once per warnInterval.
func (s *Store) logWarning(now time.Time) {
	if text := s.Warning(now); text != "" && now.Sub(s.warned) >= warnInterval {
		s.warned = now
		s.log.Warn("certificate must be replaced", "listener", s.files.Listener, "reason", text)
	}
}

// Warnings returns a text for each certificate that has expired or expires
// soon. They do not make the node unready: existing connections go on.
func Warnings(stores []*Store, now time.Time) (warnings []string) {
	for _, s := range stores {
		if text := s.Warning(now); text != "" {
			warnings = append(warnings, text)
		}
	}
	return warnings
}

// checkInterval is how often certificate files are checked at idle listeners.
const checkInterval = time.Minute

// Watch reloads replaced certificate files and logs a warning before one expires, also at
// listeners to which no client connects. It returns when ctx ends.
func Watch(ctx context.Context, stores []*Store) error {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			for _, s := range stores {
				s.Refresh(now)
			}
		}
	}
}
