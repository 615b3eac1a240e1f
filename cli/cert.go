package cli

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"yardmaster/internal/certs"

	"github.com/spf13/cobra"
)

// Lives of certificates unless told otherwise, in days.
const (
	authorityDays = 3650
	leafDays      = 365
)

// caName names the authority's files.
const caName = "ca"

func (a *app) certVerbs() *cobra.Command {
	return group(&cobra.Command{
		Use:   "cert <verb>",
		Short: "Make a private authority and certificates for TLS, and look at them",
		Long: `Makes what TLS needs where there is no other authority: 'cert ca' once for a
yard, 'cert node' for each member, 'cert client' for whoever has to show who he
is. All need only files; no node is asked. The authority's key signs, and
belongs on no member. docs/tls.md tells what goes where.`,
		Example: `  yardmaster cert ca
  yardmaster cert node n1 --host 10.0.0.1 --host n1.example.org
  yardmaster cert client shop
  yardmaster cert show n1.pem ca.pem`,
	}, a.certCAVerb(), a.certNodeVerb(), a.certClientVerb(), a.certShowVerb())
}

// issueFlags are those of the verbs that make certificates.
type issueFlags struct {
	dir   string
	days  int
	force bool
}

func (f *issueFlags) add(c *cobra.Command, days int) *cobra.Command {
	c.Flags().StringVar(&f.dir, "dir", ".", "`directory` of the authority's files, and of what is made")
	c.Flags().IntVar(&f.days, "days", days, "`days` until it ends")
	c.Flags().BoolVar(&f.force, "force", false, "replace files that are there")
	return c
}

func (f *issueFlags) life(c *cobra.Command) (time.Duration, error) {
	if f.days < 1 || f.days > 36500 {
		return 0, usage(c, fmt.Sprintf("--days is %d: must be 1 to 36500", f.days))
	}
	return time.Duration(f.days) * 24 * time.Hour, nil
}

func (a *app) certCAVerb() *cobra.Command {
	var f issueFlags
	var name string
	c := f.add(&cobra.Command{
		Use:   "ca",
		Short: "Make a yard's own authority: ca.pem and ca-key.pem",
		Long: `Makes the authority of one yard. ca.pem goes to every member and client; it is no
secret. ca-key.pem signs certificates: who has it can pretend to be any member,
so keep it where no node runs.`,
		Example: `  yardmaster cert ca --dir pki`,
		Args:    args(),
	}, authorityDays)
	c.Flags().StringVar(&name, "name", "yard authority", "`name` of the authority, as programs show it")
	c.RunE = func(c *cobra.Command, _ []string) error {
		life, err := f.life(c)
		if err != nil {
			return err
		}
		_, pair, err := certs.NewAuthority(name, life, time.Now())
		if err != nil {
			return err
		}
		return a.keepPair(f, caName, pair)
	}
	return c
}

func (a *app) certNodeVerb() *cobra.Command {
	var f issueFlags
	var hosts []string
	c := f.add(&cobra.Command{
		Use:   "node <name>",
		Short: "Make a member's certificate: <name>.pem and <name>-key.pem",
		Long: `Makes the certificate of one member, for [cluster.tls], [nats.tls], [http.tls] and
[server.tls]. Members know each other by the member's name on it; clients by the
host they connect to, so give each --host under which they do.`,
		Example: `  yardmaster cert node n1 --dir pki --host 10.0.0.1 --host n1.example.org`,
		Args:    args("name"),
	}, leafDays)
	c.Flags().StringArrayVar(&hosts, "host", nil, "`name or address` under which clients reach it; may be repeated")
	c.RunE = func(c *cobra.Command, args []string) error {
		return a.issue(c, f, certs.Leaf{Name: args[0], Hosts: hosts, Member: true})
	}
	return c
}

func (a *app) certClientVerb() *cobra.Command {
	var f issueFlags
	c := f.add(&cobra.Command{
		Use:   "client <name>",
		Short: "Make a client's certificate: <name>.pem and <name>-key.pem",
		Long: `Makes a certificate for a producer, a worker or a person, where a node asks for
one by client_ca_file. It carries no name that a member could have, so its
holder cannot pretend to be one.`,
		Example: `  yardmaster cert client shop --dir pki --days 90`,
		Args:    args("name"),
	}, leafDays)
	c.RunE = func(c *cobra.Command, args []string) error {
		return a.issue(c, f, certs.Leaf{Name: args[0]})
	}
	return c
}

// issue signs a certificate with the authority in the directory.
func (a *app) issue(c *cobra.Command, f issueFlags, leaf certs.Leaf) (err error) {
	if leaf.Life, err = f.life(c); err != nil {
		return err
	}
	if err := leaf.Validate(); err != nil {
		return usage(c, err.Error())
	}
	if leaf.Name == caName {
		return usage(c, `the name "ca" is that of the authority's files`)
	}
	var own certs.Pair
	cert, key := pairFiles(f.dir, caName)
	if own.Cert, err = os.ReadFile(cert); err == nil {
		own.Key, err = os.ReadFile(key)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return &problem{what: err.Error(), do: "make the authority with 'yardmaster cert ca', or name its directory with --dir"}
	}
	var authority *certs.Authority
	if err == nil {
		authority, err = certs.ReadAuthority(own)
	}
	if err != nil {
		return &problem{what: fmt.Sprintf("the authority in %s cannot be used: %v", f.dir, err), do: "name its directory with --dir"}
	}
	if !time.Now().Before(authority.Cert.NotAfter) {
		return &problem{what: fmt.Sprintf("the authority %s has ended on %s", cert, authority.Cert.NotAfter.Format(time.DateOnly)), do: "make another with 'yardmaster cert ca'; docs/tls.md tells how to change over"}
	}
	pair, err := authority.Issue(leaf, time.Now())
	if err != nil {
		return err
	}
	return a.keepPair(f, leaf.Name, pair)
}

func pairFiles(dir, name string) (cert, key string) {
	return filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
}

// keepPair writes a certificate and its key, and says what they are.
func (a *app) keepPair(f issueFlags, name string, pair certs.Pair) error {
	cert, key := pairFiles(f.dir, name)
	if err := pair.Keep(cert, key, f.force); errors.Is(err, fs.ErrExist) {
		return &problem{what: err.Error(), do: "replace it with --force, or choose another directory with --dir"}
	} else if err != nil {
		return &problem{what: err.Error(), do: "name a directory that can be written with --dir"}
	}
	parsed, err := certs.Parse(pair.Cert)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.Out, "%s, %s: %s, until %s\n", cert, key, whose(parsed[0]), parsed[0].NotAfter.UTC().Format(time.DateOnly))
	return err
}

// whose says what a certificate is for.
func whose(c *x509.Certificate) string {
	switch names := namesOn(c); {
	case c.IsCA:
		return fmt.Sprintf("authority %q", c.Subject.CommonName)
	case len(names) > 0:
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("client %q", c.Subject.CommonName)
}

func namesOn(c *x509.Certificate) []string {
	names := append([]string{}, c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}

// shownCertificate is a certificate as 'cert show --json' tells it.
type shownCertificate struct {
	File    string    `json:"file"`
	Subject string    `json:"subject"`
	Names   []string  `json:"names"`
	For     string    `json:"for"` // authority, or server, client
	Issuer  string    `json:"issuer"`
	From    time.Time `json:"from"`
	Until   time.Time `json:"until"`
	State   string    `json:"state"` // good, ends soon, ended, not yet
}

func (a *app) certShowVerb() *cobra.Command {
	return a.takesJSON(&cobra.Command{
		Use:   "show <file>...",
		Short: "Show whose certificates are in files, and until when",
		Long: `Shows every certificate in the files: whose it is, under which names and addresses,
what for, who has signed it, and until when it is good. It exits with 1 if one
has ended or has not begun.`,
		Example: `  yardmaster cert show /etc/yardmaster/*.pem`,
		Args: func(c *cobra.Command, given []string) error {
			if len(given) == 0 {
				return usage(c, "file is missing")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, files []string) error {
			return a.showCertificates(files)
		},
	})
}

func (a *app) showCertificates(files []string) error {
	now, all, bad := time.Now(), []shownCertificate{}, false
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return &problem{what: err.Error(), do: "name files that hold certificates"}
		}
		found, err := certs.Parse(text)
		if err != nil && strings.Contains(string(text), "PRIVATE KEY") {
			continue // a key beside its certificate, named by a pattern
		}
		if err != nil {
			return &problem{what: fmt.Sprintf("%s: %v", file, err), do: "name files that hold certificates"}
		}
		for _, c := range found {
			s := shownCertificate{file, c.Subject.String(), namesOn(c), uses(c), c.Issuer.String(), c.NotBefore.UTC(), c.NotAfter.UTC(), stateOf(c, now)}
			bad = bad || s.State == "ended" || s.State == "not yet"
			all = append(all, s)
		}
	}
	if err := a.printCertificates(all); err != nil {
		return err
	}
	if bad {
		return &exitError{exitFailed}
	}
	return nil
}

func (a *app) printCertificates(all []shownCertificate) error {
	if a.json {
		text, err := json.Marshal(all)
		if err != nil {
			return err
		}
		return a.printJSON(text)
	}
	for i, s := range all {
		if i > 0 {
			fmt.Fprintln(a.Out)
		}
		_, err := fmt.Fprintf(a.Out, "file      %s\nsubject   %s\nnames     %s\nfor       %s\nissuer    %s\nfrom      %s\nuntil     %s (%s)\n",
			s.File, s.Subject, or(strings.Join(s.Names, ", ")), s.For, s.Issuer, s.From.Format(time.RFC3339), s.Until.Format(time.RFC3339), s.State)
		if err != nil {
			return err
		}
	}
	return nil
}

func uses(c *x509.Certificate) string {
	if c.IsCA {
		return "authority"
	}
	var list []string
	for _, u := range c.ExtKeyUsage {
		switch u {
		case x509.ExtKeyUsageServerAuth:
			list = append(list, "server")
		case x509.ExtKeyUsageClientAuth:
			list = append(list, "client")
		}
	}
	return or(strings.Join(list, ", "))
}

func stateOf(c *x509.Certificate, now time.Time) string {
	switch left := c.NotAfter.Sub(now); {
	case left < 0:
		return "ended"
	case now.Before(c.NotBefore):
		return "not yet"
	case left < certs.Soon:
		return "ends soon"
	default:
		return "good"
	}
}
