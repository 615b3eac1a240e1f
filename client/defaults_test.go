package client_test

import (
	"slices"
	"testing"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/client/yardtest"
)

// parcel is a job whose type has options.
type parcel struct{ Number string }

func (parcel) Kind() string  { return "deliver" }
func (parcel) Queue() string { return "parcels" }

func (p parcel) DefaultOptions() []client.Option {
	return append(parcelOptions, client.Key(p.Number))
}

// parcelOptions has room for another option, as a slice that is built by append.
var parcelOptions = append(make([]client.Option, 0, 9), client.Priority(7), client.MaxAttempts(20))

// TestArgs_DefaultOptions checks the order in which a job's options count.
func TestArgs_DefaultOptions(t *testing.T) {
	first := client.NewSpec(parcel{"a"}, client.Priority(2))
	second := client.NewSpec(parcel{"b"}, client.Queue("express"), client.Key("k"))
	if *first.Priority != 2 || first.MaxAttempts != 20 || first.Key != "a" || first.Queue != "parcels" {
		t.Errorf("the first job is %+v", first)
	}
	if *second.Priority != 7 || second.Key != "k" || second.Queue != "express" {
		t.Errorf("the second job is %+v", second)
	}
}

// TestEnqueueMany_Keys checks that only a key of the call is numbered: one of the args is
// unique already, and stays the same wherever the args are in the list.
func TestEnqueueMany_Keys(t *testing.T) {
	yard(t, func(t *testing.T, y *yardtest.Yard, c *client.Client) {
		parcels := []parcel{{"a"}, {"b"}}
		client.EnqueueMany(t.Context(), c, parcels)
		client.EnqueueMany(t.Context(), c, parcels, client.Key("k"))
		var keys []string
		for _, j := range y.Jobs("parcels") {
			keys = append(keys, j.Key)
		}
		slices.Sort(keys)
		if want := []string{"a", "b", "k#0", "k#1"}; !slices.Equal(keys, want) {
			t.Errorf("keys %q, want %q", keys, want)
		}
	})
}
