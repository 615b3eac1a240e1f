package job

import (
	"cmp"
	"unicode/utf8"
)

// ErrKeysDiffer is returned for a job that a client has published under one key and that
// names another one in its body.
var ErrKeysDiffer error = &InvalidError{Reason: "the id in the job and the header Nats-Msg-Id name different jobs; give one of them"}

// ReadDirect reads a job that a client has published to a lane, where no node has checked it. It
// returns the body of its record, to which the values of the headers h are added, and the producer's
// key. The client gives the key as the field "id", which the record does not keep, or in a header:
// header is the key in the header, or "".
//
// A body that need not be changed is returned as it is, and so is an invalid one. The error is
// an [*InvalidError]: unlike [ParseSpec], ReadDirect refuses a field that no job has, such as
// "max_attemps", because otherwise the producer would not learn that the field has no effect. The
// error is [ErrKeysDiffer] if the two keys name different jobs.
func ReadDirect(queue, header string, body []byte, h Headers) (record []byte, key string, err error) {
	spec, plain := ScanSpec(body)
	id := ""
	if !plain || !utf8.Valid(body) {
		var decoded struct {
			Spec
			ID string `json:"id"`
		}
		err := UnmarshalStrict("job", body, &decoded)
		spec, id = decoded.Spec, decoded.ID
		if err == nil {
			err = cmp.Or(spec.CheckProducer(), sameKey(queue, header, id))
		}
		if err != nil {
			return body, cmp.Or(header, id), err
		}
	}
	key = cmp.Or(header, id)
	added, err := spec.ApplyHeaders(h)
	if err != nil || !added && id == "" {
		return body, key, err
	}
	if string(spec.Params) == "null" { // absent, as in every other field
		spec.Params = nil
	}
	if err := spec.UseKey(); err != nil {
		return body, key, err
	}
	full, err := spec.Encode()
	if err != nil {
		return body, key, invalid("job cannot be written as JSON: %v", err)
	}
	return full, key, nil
}

// CheckProducer returns an [*InvalidError] if a producer has set a field that only nodes set, or
// params that are nested more than [MaxDepth] deep. Records that are accepted may have both:
// earlier builds accepted params of any depth.
func (s *Spec) CheckProducer() error {
	if s.Blob != nil || s.Indexed != nil {
		return errForNodes
	}
	return CheckDepth("params", s.Params)
}

// errForNodes is the error for fields that only nodes write.
var errForNodes error = &InvalidError{Reason: "blob and indexed are written by nodes; send the body itself"}

// sameKey returns [ErrKeysDiffer] if two keys, "" for none, name different jobs of a queue.
func sameKey(queue, a, b string) error {
	if a == "" || b == "" || a == b {
		return nil
	}
	first, err := KeyID(queue, a)
	second, err2 := KeyID(queue, b)
	if err := cmp.Or(err, err2); err != nil {
		return &InvalidError{Reason: err.Error()}
	}
	if first != second {
		return ErrKeysDiffer
	}
	return nil
}
