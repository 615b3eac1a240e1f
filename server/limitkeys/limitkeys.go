// Package limitkeys takes the limit keys of jobs from their params, for queues that say where
// they are: at the doors, where a job without a key is refused, and when the authority ingests a
// record, which a client may have published without a door. It also returns the labels by which
// jobs are found, with the values of params that the queue indexes.
package limitkeys

import (
	"fmt"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Finder finds limit keys. Its methods may be called from any goroutine, and a nil Finder finds
// none.
type Finder struct {
	ParamPaths func() *ledger.AllParamPaths         // of the local ledger, now
	ToJSON     func(msgpack []byte) ([]byte, error) // fails for values that JSON cannot represent
}

// Find returns the limit key of a job for a queue, which must not be a reference to a blob: the
// one that it gives, or else the one in its params. It is nil if the job gives none and the
// queue has no key path. The error is a [*job.InvalidError] that names the path.
func (f *Finder) Find(queue string, spec *job.Spec) (*string, error) {
	if f == nil || spec.LimitKey != nil {
		return spec.LimitKey, nil
	}
	at := f.ParamPaths().Of(queue)
	if at.Key == "" {
		return nil, nil
	}
	key, found, err := job.KeyAt(f.params(spec), at.Key)
	switch {
	case err != nil:
		return nil, err
	case !found && !at.KeyOptional:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("the job has no limit key: queue %s takes it from %s, where there is no value; add it, or give limit_key", queue, at.Key)}
	}
	return &key, nil
}

// params returns the params of a job as JSON, nil if they have no such form.
func (f *Finder) params(spec *job.Spec) []byte {
	if len(spec.Payload) == 0 {
		return spec.Params
	}
	params, err := f.ToJSON(spec.Payload)
	if err != nil {
		return nil
	}
	return params
}

// Indexed returns the values of a job's params that its queue indexes.
func (f *Finder) Indexed(queue string, spec *job.Spec) job.IndexedValues {
	if f == nil {
		return nil
	}
	return job.IndexedValuesOf(f.indexed(queue, spec))
}

func (f *Finder) indexed(queue string, spec *job.Spec) []job.Label {
	paths := f.ParamPaths().Of(queue).Index
	switch {
	case len(paths) == 0:
		return nil
	case spec.Blob != nil:
		return spec.Indexed.Labels(paths)
	}
	return job.IndexedParams(f.params(spec), paths)
}

// Labels implements [scheduler.Labels].
func (f *Finder) Labels(r *job.Record, spec *job.Spec, id job.ID) string {
	labels := spec.Labels()
	labels.Key, labels.Params = r.ProducerKey(id), f.indexed(r.Queue, spec)
	return labels.Encode()
}
