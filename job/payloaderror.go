package job

import "fmt"

// PayloadError is returned for a job whose payload does not match the schema of its queue's
// function. It wraps an [*InvalidError].
type PayloadError struct {
	Path    string // JSON Pointer to a value in the payload; "": the whole payload
	Reason  string // such as "must be a string"
	Version uint64 // of the schema
}

func (e *PayloadError) Error() string {
	return fmt.Sprintf("params%s: %s (schema version %d)", e.Path, e.Reason, e.Version)
}

func (e *PayloadError) Unwrap() error { return &InvalidError{Reason: e.Error()} }
