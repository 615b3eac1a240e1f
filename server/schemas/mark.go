package schemas

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/yardmaster-dev/yardmaster/job"
)

// A node that has checked a large body says so in the reference to it, so that the authority
// need not read the body: "<version>.<MAC>". Clients can publish references, too, but do not
// know the secret.

// Mark returns the mark of a body that was checked against a version of the schema of a
// queue's function. It is "" if version is 0, or the secret is not known yet.
func (c *Checker) Mark(queue, function string, version uint64, blob *job.Blob) string {
	if c == nil || version == 0 {
		return ""
	}
	secret := c.cfg.Secret()
	if len(secret) == 0 {
		return ""
	}
	mac := hmac.New(sha256.New, secret)
	_, _ = fmt.Fprintf(mac, "payload schema\x00%s\x00%s\x00%d\x00%s\x00%s", queue, function, version, blob.Name, blob.SHA256) // a hash never fails
	return strconv.FormatUint(version, 10) + "." + hex.EncodeToString(mac.Sum(nil)[:16])
}

// wasChecked reports whether a node has checked a body against this version of its schema.
func (c *Checker) wasChecked(schema *compiled, function string, blob *job.Blob) bool {
	version, _, _ := strings.Cut(blob.Checked, ".")
	if version != strconv.FormatUint(schema.Version, 10) {
		return false
	}
	return hmac.Equal([]byte(blob.Checked), []byte(c.Mark(schema.Queue, function, schema.Version, blob)))
}
