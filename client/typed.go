package client

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync"
)

// Args are the params of a job, of a type of their own. Kind returns the function that the
// job names, such as "send_mail"; it must not depend on the value. A type with a method
//
//	Queue() string
//
// names the queue of its jobs; that of other types is "default", unless the job has the
// option [Queue]. A type with a method
//
//	DefaultOptions() []Option
//
// has options for its jobs, which those of a call override. They may depend on the value, such
// as a unique key; a queue must not. A type with a method
//
//	Returns() R
//
// names the type of its jobs' results: see [ArgsOf].
type Args interface{ Kind() string }

// ArgsOf are [Args] that name the type of the result, for [Do]. What Returns returns does not
// matter, so that one line suffices:
//
//	func (SendMail) Returns() (r Sent) { return }
//
// [Handle] panics if a handler of such jobs returns another type.
type ArgsOf[R any] interface {
	Args
	Returns() R
}

// DefaultQueue is the queue of jobs whose args name none.
const DefaultQueue = "default"

// NewSpec returns the job with these args and options that [Enqueue] enqueues, for functions
// that take jobs of any params.
func NewSpec(args Args, options ...Option) Spec { return *newSpec(args, options) }

// newSpec is NewSpec without a copy of the job.
func newSpec(args Args, options []Option) *Spec {
	s := &Spec{Queue: queueOf(args), Function: args.Kind(), Params: args}
	if with, ok := args.(interface{ DefaultOptions() []Option }); ok {
		options = slices.Concat(with.DefaultOptions(), options)
	}
	for _, set := range options {
		set(s)
	}
	return s
}

// queueOf returns the queue of jobs with these args.
func queueOf(args Args) string {
	if named, ok := args.(interface{ Queue() string }); ok {
		return named.Queue()
	}
	return DefaultQueue
}

// Enqueue enqueues a job and returns its id once it is accepted, as [Client.Enqueue] does.
func Enqueue[A Args](ctx context.Context, c *Client, args A, options ...Option) (id string, err error) {
	return c.enqueueSpec(ctx, newSpec(args, options))
}

// Enqueued is the answer to one job of [EnqueueMany].
type Enqueued struct {
	ID  string
	Err error // as of [Client.Enqueue]; nil means that the job is accepted
}

// concurrentEnqueues is how many jobs of one call of EnqueueMany are sent before the first
// is answered. A node reads no further after 1024 requests of a connection.
const concurrentEnqueues = 512

// EnqueueMany enqueues any number of jobs with the same options, over one connection and
// without waiting for one before the next. It returns one answer for each, in order. With
// the option [Key], job i has the key with "#i" appended, as in a bulk request of the API, so
// that the call may be repeated with the same args. A key in the default options of the args
// stays as it is.
func EnqueueMany[A Args](ctx context.Context, c *Client, args []A, options ...Option) []Enqueued {
	specs := make([]Spec, len(args))
	var given Spec
	for _, set := range options {
		set(&given)
	}
	for i, a := range args {
		specs[i] = NewSpec(a, options...)
		if given.Key != "" {
			specs[i].Key += "#" + strconv.Itoa(i)
		}
	}
	return c.EnqueueMany(ctx, specs)
}

// EnqueueMany enqueues jobs, and returns one answer for each, in order. They need not be of
// one queue. With a [Spec.Key] each, the call may be repeated until all are accepted.
func (c *Client) EnqueueMany(ctx context.Context, specs []Spec) []Enqueued {
	answers := make([]Enqueued, len(specs))
	next := make(chan int)
	var senders sync.WaitGroup
	for range min(concurrentEnqueues, len(specs)) {
		senders.Go(func() {
			for i := range next {
				answers[i].ID, answers[i].Err = c.enqueueSpec(ctx, &specs[i])
			}
		})
	}
	for i := range specs {
		next <- i
	}
	close(next)
	senders.Wait()
	return answers
}

// Await blocks until a job has ended, and returns its result as an R. It returns the
// errors of [Client.Wait] and [Result.Decode].
func Await[R any](ctx context.Context, c *Client, id string) (R, error) {
	var decoded R
	result, err := c.Wait(ctx, id)
	if err == nil {
		if err = result.Decode(&decoded); err != nil {
			err = fmt.Errorf("result of %s: %w", id, err)
		}
	}
	return decoded, err
}

// zeroArgs returns the zero value of A, for its methods; of a pointer type, a pointer to one.
func zeroArgs[A Args]() (zero A) {
	if t := reflect.TypeFor[A](); t.Kind() == reflect.Pointer {
		return reflect.New(t.Elem()).Interface().(A)
	}
	return zero
}

// Do is [Call] for args that name the type of the result.
func Do[A ArgsOf[R], R any](ctx context.Context, c *Client, args A, options ...Option) (R, error) {
	return Call[R](ctx, c, args, options...)
}

// checkReturns returns an error if the args of a handler name another type of results than
// the one that the handler returns, or points to.
func checkReturns(args, result reflect.Type) error {
	method, ok := args.MethodByName("Returns")
	if !ok || method.Type.NumIn() != 1 || method.Type.NumOut() != 1 { // the receiver is the only parameter
		return nil
	}
	named := method.Type.Out(0)
	if result.Kind() == reflect.Interface || result == named || result == reflect.PointerTo(named) {
		return nil
	}
	return fmt.Errorf("it returns a %s, and the method Returns of %s names a %s", result, args, named)
}

// Call enqueues a job and waits for its result: [Enqueue], then [Await]. If ctx ends first,
// the job keeps running.
func Call[R any, A Args](ctx context.Context, c *Client, args A, options ...Option) (R, error) {
	id, err := Enqueue(ctx, c, args, options...)
	if err != nil {
		var none R
		return none, err
	}
	return Await[R](ctx, c, id)
}
