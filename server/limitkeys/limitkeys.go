// Package limitkeys takes the limit keys of jobs from their params, for queues that say where
// they are: at the doors, where a job without a key is refused, and when the authority ingests a
// record, which a client may have published without a door. It also returns the labels by which
// jobs are found.
package limitkeys

import (
	"fmt"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Finder finds limit keys. Its methods may be called from any goroutine, and a nil Finder finds
// none.
type Finder struct {
	KeyPaths func() *ledger.KeyPaths              // of the local ledger, now
	ToJSON   func(msgpack []byte) ([]byte, error) // fails for values that JSON cannot represent
}

// Find returns the limit key of a job for a queue, which must not be a reference to a blob: the
// one that it gives, or else the one in its params. It is nil if the job gives none and the
// queue has no key path. The error is a [*job.InvalidError] that names the path.
func (f *Finder) Find(queue string, spec *job.Spec) (*string, error) {
	if f == nil || spec.LimitKey != nil {
		return spec.LimitKey, nil
	}
	at := f.KeyPaths().Of(queue)
	if at.Path == "" {
		return nil, nil
	}
	params := []byte(spec.Params)
	if len(spec.Payload) > 0 {
		var err error
		if params, err = f.ToJSON(spec.Payload); err != nil {
			params = nil // as without params
		}
	}
	key, found, err := job.KeyAt(params, at.Path)
	switch {
	case err != nil:
		return nil, err
	case !found && !at.Optional:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("the job has no limit key: queue %s takes it from %s, where there is no value; add it, or give limit_key", queue, at.Path)}
	}
	return &key, nil
}

// Labels implements [scheduler.Labels].
func (f *Finder) Labels(r *job.Record, spec *job.Spec, id job.ID) string {
	labels := spec.Labels()
	labels.Key = r.ProducerKey(id)
	return labels.Encode()
}
