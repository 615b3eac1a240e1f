// Package must ends a drill or a benchmark where it fails, as FailNow ends a test.
package must

// failure is the value with which Do panics.
type failure struct{ err error }

// Do ends the function that has deferred [Recover] if err is not nil. It must be called
// from the same goroutine.
func Do(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Get returns v, or ends like [Do] if err is not nil.
func Get[T any](v T, err error) T {
	Do(err)
	return v
}

// Recover stores the error with which Do has ended the function that defers Recover.
func Recover(err *error) {
	if r := recover(); r != nil {
		f, ok := r.(failure)
		if !ok {
			panic(r)
		}
		*err = f.err
	}
}
