package peers

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
)

// A member with a secret proves in its hello, as the side that was called, that it has the
// secret, and expects the same from a caller for Raft after the hellos. Both proofs are of
// both nonces and names, so that none is valid on another connection. The proof protects
// members without TLS from strangers that can connect, not from those that can change what
// is sent.
const (
	proofOfCaller = "caller"
	proofOfCalled = "called"
)

// reasonSecret is why members with different secrets refuse each other.
const reasonSecret = "has another cluster.secret, or none: set the same on all members"

// errNoProof is returned for a caller that does not prove that it has the secret.
var errNoProof = errors.New("the caller does not prove that it has this member's cluster.secret")

// proof returns the proof of one side, given the hellos of both, or nil without a secret.
func (l *PeerListener) proof(side string, caller, called *hello) []byte {
	if l.secret == "" {
		return nil
	}
	m := hmac.New(sha256.New, []byte(l.secret))
	fmt.Fprintf(m, "%s %q %q %q %q %q %q", side, caller.Nonce, caller.Node, caller.Dir, called.Nonce, called.Node, called.Dir)
	return m.Sum(nil)
}

// newNonce returns a random text for a hello.
func newNonce() string { return rand.Text() }

// proveCaller checks the proof in the answer of the member that was called, and sends this
// member's proof if the connection is for Raft. It returns why the other side is refused,
// "" if it is not.
func (l *PeerListener) proveCaller(conn io.Writer, mine, answer *hello) (reason string, err error) {
	if !hmac.Equal(answer.Proof, l.proof(proofOfCalled, mine, answer)) {
		return reasonSecret, nil
	}
	if l.secret != "" && mine.Purpose == purposeRaft {
		_, err = conn.Write(l.proof(proofOfCaller, mine, answer))
	}
	return "", err
}

// verifyCaller reads and checks the proof of a caller for Raft.
func (l *PeerListener) verifyCaller(conn io.Reader, theirs, mine *hello) error {
	if l.secret == "" || theirs.Purpose != purposeRaft {
		return nil
	}
	got := make([]byte, sha256.Size)
	if _, err := io.ReadFull(conn, got); err != nil {
		return errors.Join(errNoProof, err)
	}
	if !hmac.Equal(got, l.proof(proofOfCaller, theirs, mine)) {
		return errNoProof
	}
	return nil
}
