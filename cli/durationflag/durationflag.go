// Package durationflag adds flags for durations that may be given in days.
package durationflag

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Var adds a flag whose value [duration.Parse] reads into p. If value, the default,
// is 0, the help does not show it.
func Var(flags *pflag.FlagSet, p *time.Duration, name string, value time.Duration, usage string) {
	*p = value
	flags.Var((*flagValue)(p), name, usage)
	if value == 0 {
		flags.Lookup(name).DefValue = "0"
	}
}

// flagValue is the value of a flag; it implements [pflag.Value].
type flagValue time.Duration

func (v *flagValue) String() string { return duration.Format(time.Duration(*v)) }
func (v *flagValue) Type() string   { return "duration" }

func (v *flagValue) Set(text string) error {
	d, err := duration.Parse(text)
	if err == nil {
		*v = flagValue(d)
	}
	return err
}
