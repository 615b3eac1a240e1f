// Package wire encodes the messages between nodes.
//
// A message is a byte with its version, followed by the message as
// [github.com/yardmaster-dev/yardmaster/internal/structpack] encodes it. Bodies are
// not copied when a message is decoded: they share its memory, which the receiver
// must not change.
package wire

import (
	"errors"
	"fmt"
	"math"

	"github.com/yardmaster-dev/yardmaster/internal/structpack"
	"github.com/yardmaster-dev/yardmaster/job"
)

// version is the first byte of every message.
const version = 5

// ErrMalformed means that the bytes are not a message of the expected kind.
var ErrMalformed = errors.New("malformed message between nodes")

// VersionError means that the message was written by a node of another version.
type VersionError struct{ Got byte }

func (e *VersionError) Error() string {
	return fmt.Sprintf("message between nodes has version %d; this node uses %d", e.Got, version)
}

// Message lists the messages between nodes.
type Message interface {
	job.AssignmentBatch | []job.Answer | job.Report | job.ReportAck |
		job.Heartbeat | job.HeartbeatAck | job.Recall | []job.Record
}

// Encode returns the encoding of v.
func Encode[T Message](v *T) []byte {
	return structpack.Encode([]byte{version}, func(e *structpack.Encoder) { e.Value(v) })
}

// Decode decodes what [Encode] wrote. Bodies share b's memory.
func Decode[T Message](b []byte) (v T, err error) {
	if len(b) == 0 {
		return v, ErrMalformed
	}
	if b[0] != version {
		return v, &VersionError{b[0]}
	}
	err = structpack.DecodeShared(b[1:], func(d *structpack.Decoder) error {
		if err := d.Value(&v); err != nil {
			return err
		}
		return check(&v)
	})
	if err != nil {
		var none T
		return none, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return v, nil
}

// check returns an error if a number that a message carries is out of its range.
func check(message any) error {
	switch v := message.(type) {
	case *job.Report:
		for _, o := range v.Offers {
			if o.Free < 0 || o.Free > math.MaxInt32 {
				return fmt.Errorf("offer with a capacity of %d", o.Free)
			}
		}
		for i := range v.Outcomes {
			if s := v.Outcomes[i].Status; s < job.Success || s > job.RunCancelled {
				return fmt.Errorf("outcome with status %d", uint8(s))
			}
		}
	case *job.ReportAck:
		for _, s := range v.Settled {
			if int(s.State) >= job.States {
				return fmt.Errorf("settlement with state %d", uint8(s.State))
			}
		}
	}
	return nil
}
