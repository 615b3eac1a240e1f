package operate

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/internal/certs"

	"github.com/spf13/cobra"
)

// Default lifetimes of certificates, in days.
const (
	authorityDays = 3650
	leafDays      = 365
)

// caName is the base name of the authority's files.
const caName = "ca"

// CertVerbs returns the verb cert.
func CertVerbs(env *command.Env) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "cert <verb>",
		Short: "Create and show a certificate authority and certificates for TLS",
		Long: `Creates the files that TLS needs if there is no other certificate authority: 'cert
ca' once for a yard, 'cert node' for each member, 'cert client' for each client
that has to authenticate itself. The verbs work on files and contact no node.
Keep the authority's private key off the members. docs/guides/secure.md explains which
file goes where.`,
		Example: `  yardmaster cert ca
  yardmaster cert node n1 --host 10.0.0.1 --host n1.example.org
  yardmaster cert client shop
  yardmaster cert show n1.pem ca.pem`,
	}, certCAVerb(env), certNodeVerb(env), certClientVerb(env), certShowVerb(env))
}

// issueFlags are the common flags of the verbs that create certificates.
type issueFlags struct {
	dir   string
	days  int
	force bool
}

// add adds the flags to c and returns c. days is the default of --days.
func (f *issueFlags) add(c *cobra.Command, days int) *cobra.Command {
	c.Flags().StringVar(&f.dir, "dir", ".", "`directory` of the authority's files and of the new files")
	c.Flags().IntVar(&f.days, "days", days, "lifetime in `days`")
	c.Flags().BoolVar(&f.force, "force", false, "replace existing files")
	return c
}

// lifetime returns the value of --days as a duration, or a usage error.
func (f *issueFlags) lifetime(c *cobra.Command) (time.Duration, error) {
	if f.days < 1 || f.days > 36500 {
		return 0, usererror.Usage(c, "--days is %d: must be 1 to 36500", f.days)
	}
	return time.Duration(f.days) * 24 * time.Hour, nil
}

// certCAVerb returns the verb 'cert ca'.
func certCAVerb(env *command.Env) *cobra.Command {
	var f issueFlags
	var name string
	c := f.add(&cobra.Command{
		Use:   "ca",
		Short: "Create a certificate authority: ca.pem and ca-key.pem",
		Long: `Creates the certificate authority of one yard. ca.pem goes to every member and
client; it is not secret. ca-key.pem signs certificates: with it anyone can
impersonate a member, so keep it on a host that runs no node.`,
		Example: `  yardmaster cert ca --dir pki`,
	}, authorityDays)
	c.Flags().StringVar(&name, "name", "yard authority", "common `name` of the authority")
	c.RunE = func(c *cobra.Command, _ []string) error {
		lifetime, err := f.lifetime(c)
		if err != nil {
			return err
		}
		_, pair, err := certs.NewAuthority(name, lifetime, time.Now())
		if err != nil {
			return err
		}
		return savePair(env, f, caName, pair)
	}
	return c
}

// certNodeVerb returns the verb 'cert node'.
func certNodeVerb(env *command.Env) *cobra.Command {
	var f issueFlags
	var hosts []string
	c := f.add(&cobra.Command{
		Use:   "node <name>",
		Short: "Create a member's certificate: <name>.pem and <name>-key.pem",
		Long: `Creates the certificate of one member, for [cluster.tls], [nats.tls], [http.tls]
and [server.tls]. Members verify the member's name in it; clients verify the
host they connect to, so repeat --host for each name and address that they use.`,
		Example: `  yardmaster cert node n1 --dir pki --host 10.0.0.1 --host n1.example.org`,
	}, leafDays)
	c.Flags().StringArrayVar(&hosts, "host", nil, "`name or address` that clients connect to; may be repeated")
	c.RunE = func(c *cobra.Command, args []string) error {
		return issue(env, c, f, certs.Leaf{Name: args[0], Hosts: hosts, Member: true})
	}
	return c
}

// certClientVerb returns the verb 'cert client'.
func certClientVerb(env *command.Env) *cobra.Command {
	var f issueFlags
	c := f.add(&cobra.Command{
		Use:   "client <name>",
		Short: "Create a client's certificate: <name>.pem and <name>-key.pem",
		Long: `Creates a certificate for a producer, a worker or a person, for nodes that require
one by client_ca_file. It carries no name that a member could have, so it cannot
be used to impersonate a member.`,
		Example: `  yardmaster cert client shop --dir pki --days 90`,
	}, leafDays)
	c.RunE = func(c *cobra.Command, args []string) error {
		return issue(env, c, f, certs.Leaf{Name: args[0]})
	}
	return c
}

// issue creates a certificate, signed by the authority in f.dir, and saves it there. leaf
// describes the certificate, except for its lifetime.
func issue(env *command.Env, c *cobra.Command, f issueFlags, leaf certs.Leaf) (err error) {
	if leaf.Lifetime, err = f.lifetime(c); err != nil {
		return err
	}
	if err := leaf.Validate(); err != nil {
		return usererror.Usage(c, "%v", err)
	}
	if leaf.Name == caName {
		return usererror.Usage(c, `the name "ca" is reserved for the authority's files`)
	}
	authority, err := readAuthority(f.dir)
	if err != nil {
		return err
	}
	pair, err := authority.Issue(leaf, time.Now())
	if err != nil {
		return err
	}
	return savePair(env, f, leaf.Name, pair)
}

// readAuthority returns the certificate authority whose files are in dir, or a user error
// if the files are missing or invalid or the authority has expired.
func readAuthority(dir string) (*certs.Authority, error) {
	cert, key := pairFiles(dir, caName)
	var pair certs.Pair
	var err error
	if pair.Cert, err = os.ReadFile(cert); err == nil {
		pair.Key, err = os.ReadFile(key)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usererror.New(err.Error(), "create the authority with 'yardmaster cert ca', or name its directory with --dir")
	}
	var authority *certs.Authority
	if err == nil {
		authority, err = certs.ReadAuthority(pair)
	}
	if err != nil {
		return nil, usererror.New(fmt.Sprintf("the authority in %s cannot be used: %v", dir, err), "name its directory with --dir")
	}
	if !time.Now().Before(authority.Cert.NotAfter) {
		return nil, usererror.New(fmt.Sprintf("the authority %s expired on %s", cert, authority.Cert.NotAfter.Format(time.DateOnly)),
			"create another with 'yardmaster cert ca'; docs/guides/secure.md explains how to change over")
	}
	return authority, nil
}

// pairFiles returns the paths of a certificate and its key in dir.
func pairFiles(dir, name string) (cert, key string) {
	return filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
}

// savePair writes a certificate and its key to two files in f.dir, and prints a line about
// them. If a file exists, it returns a user error unless f.force is set.
func savePair(env *command.Env, f issueFlags, name string, pair certs.Pair) error {
	cert, key := pairFiles(f.dir, name)
	if err := pair.WriteFiles(cert, key, f.force); errors.Is(err, fs.ErrExist) {
		return usererror.New(err.Error(), "replace it with --force, or choose another directory with --dir")
	} else if err != nil {
		return usererror.New(err.Error(), "name a directory that can be written with --dir")
	}
	parsed, err := certs.Parse(pair.Cert)
	if err != nil {
		return err
	}
	err = command.Printf(env.Out, "%s, %s: %s, until %s\n", cert, key, describeCert(parsed[0]), parsed[0].NotAfter.UTC().Format(time.DateOnly))
	return err
}

// describeCert returns the names in a certificate, or what it is for and its common name
// if it is that of an authority or a client.
func describeCert(c *x509.Certificate) string {
	switch names := namesOn(c); {
	case c.IsCA:
		return fmt.Sprintf("authority %q", c.Subject.CommonName)
	case len(names) > 0:
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("client %q", c.Subject.CommonName)
}

// namesOn returns the host names and IP addresses in a certificate. The result is not
// nil, so that it is a list in JSON.
func namesOn(c *x509.Certificate) []string {
	names := append([]string{}, c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}

// certInfo is a certificate in the output of 'cert show --json'.
type certInfo struct {
	File    string    `json:"file"`
	Subject string    `json:"subject"`
	Names   []string  `json:"names"`
	For     string    `json:"for"` // "authority", or "server", "client"
	Issuer  string    `json:"issuer"`
	From    time.Time `json:"from"`
	Until   time.Time `json:"until"`
	State   string    `json:"state"` // "good", "ends soon", "ended" or "not yet"
}

// certShowVerb returns the verb 'cert show'.
func certShowVerb(env *command.Env) *cobra.Command {
	return env.WithJSON(&cobra.Command{
		Use:   "show <file>...",
		Short: "Show the certificates in files",
		Long: `Shows the subject, names, use, issuer and validity of every certificate in the
files. Exits with 1 if a certificate has expired or is not valid yet.`,
		Example: `  yardmaster cert show /etc/yardmaster/*.pem`,
		RunE: func(_ *cobra.Command, files []string) error {
			return showCertificates(env, files)
		},
	})
}

// showCertificates shows all certificates in files. It returns [usererror.Failed] if one
// of them is not valid now.
func showCertificates(env *command.Env, files []string) error {
	now := time.Now()
	all, anyInvalid := []certInfo{}, false
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return usererror.New(err.Error(), "name files that hold certificates")
		}
		found, err := certs.Parse(text)
		if err != nil && strings.Contains(string(text), "PRIVATE KEY") {
			continue // a key file, which a pattern like *.pem matches too
		}
		if err != nil {
			return usererror.New(fmt.Sprintf("%s: %v", file, err), "name files that hold certificates")
		}
		for _, c := range found {
			s := certInfo{file, c.Subject.String(), namesOn(c), certUsage(c), c.Issuer.String(), c.NotBefore.UTC(), c.NotAfter.UTC(), certState(c, now)}
			anyInvalid = anyInvalid || s.State == "ended" || s.State == "not yet"
			all = append(all, s)
		}
	}
	if err := command.PrintValue(env, all, certificatesText); err != nil {
		return err
	}
	if anyInvalid {
		return usererror.Failed
	}
	return nil
}

// certificatesText writes certificates as blocks of lines.
func certificatesText(w io.Writer, certificates *[]certInfo) {
	for i, s := range *certificates {
		if i > 0 {
			command.Printf(w, "\n")
		}
		command.Printf(w, "file      %s\nsubject   %s\nnames     %s\nfor       %s\nissuer    %s\nfrom      %s\nuntil     %s (%s)\n",
			s.File, s.Subject, command.OrDash(strings.Join(s.Names, ", ")), s.For, s.Issuer, s.From.Format(time.RFC3339), s.Until.Format(time.RFC3339), s.State)
	}
}

// certUsage returns what a certificate may be used for: "authority", "server", "client",
// "server, client", or "-".
func certUsage(c *x509.Certificate) string {
	if c.IsCA {
		return "authority"
	}
	var usages []string
	for _, usage := range c.ExtKeyUsage {
		switch usage {
		case x509.ExtKeyUsageServerAuth:
			usages = append(usages, "server")
		case x509.ExtKeyUsageClientAuth:
			usages = append(usages, "client")
		}
	}
	return command.OrDash(strings.Join(usages, ", "))
}

// certState returns whether a certificate is valid now: "ended", "not yet", "good", or
// "ends soon" if it is valid for less than certs.WarnBefore.
func certState(c *x509.Certificate, now time.Time) string {
	switch left := c.NotAfter.Sub(now); {
	case left < 0:
		return "ended"
	case now.Before(c.NotBefore):
		return "not yet"
	case left < certs.WarnBefore:
		return "ends soon"
	}
	return "good"
}
