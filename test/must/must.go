// Package must ends a drill or a benchmark where it fails, as FailNow ends a test.
package must

// failure is the value with which Do panics.
type failure struct{ err error }

// Do ends the function that [Try] has called if err is not nil. It must be called from
// the same goroutine.
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

// Try calls f, and returns the error with which Do has ended it.
func Try(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			failed, ok := r.(failure)
			if !ok {
				panic(r)
			}
			err = failed.err
		}
	}()
	f()
	return nil
}
