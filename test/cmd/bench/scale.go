package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster-dev/yardmaster/test/bench"
	"github.com/yardmaster-dev/yardmaster/test/cmd/command"
)

// newScaleCommand returns the command that measures curves.
func newScaleCommand() *cobra.Command {
	o := bench.ScaleOptions{Out: os.Stdout, Progress: os.Stderr}
	var asJSON bool
	var svg string
	seconds := 10
	c := &cobra.Command{
		Use:   "scale",
		Short: "Measure how a yard scales with waiting jobs, workers, queues, members and time",
		Long: `Starts nodes as separate processes in a temporary directory and measures them at
several sizes: with jobs that wait, idle workers, queues with jobs, and members, and
a load that lasts, minute by minute.
Writes one line of JSON per size, then tables, and a picture of each curve. The full
run takes about three quarters of an hour and fills some 20 GB of the temporary directory (TMPDIR).

The nodes run the program that YARD_BIN names, by default one built from source.
docs/reference/performance.md explains the curves.`,
		Example: `  bench scale --svg docs/reference/scale
  bench scale --only waiting --waiting 0,100000,1000000
  bench scale --only waiting,workers,queues,members --seconds 1 --rounds 1 --waiting 0,10000,100000 --workers 10,100 --queues 10,100 --members 1,3`,
		Args: cobra.NoArgs,
	}
	flags := c.Flags()
	sizes := make(map[string]*[]int)
	all := bench.ScaleSizes()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		sizes[name] = flags.IntSlice(name, all[name], "`sizes` of the curve of "+map[string]string{
			"waiting": "waiting jobs", "workers": "idle workers", "queues": "queues with jobs", "members": "members",
			"time": "minutes, after a warm-up of eleven, under a steady load"}[name]+", in increasing order")
	}
	flags.StringSliceVar(&o.Only, "only", nil, "`names` of curves, separated by commas: waiting, workers, queues, members, time")
	flags.IntVar(&seconds, "seconds", seconds, "length of each load in `seconds`")
	flags.IntVar(&o.Rounds, "rounds", 3, "`number` of loads of which the median counts")
	flags.StringVar(&svg, "svg", "", "`directory` for the pictures; empty: none")
	flags.BoolVarP(&asJSON, "json", "j", false, "write no tables")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if seconds < 1 || seconds > 60 || o.Rounds < 1 || o.Rounds > 100 {
			return fmt.Errorf("%d rounds of %d seconds: must be 1 to 100 of 1 to 60", o.Rounds, seconds)
		}
		o.Round, o.Sizes = time.Duration(seconds)*time.Second, make(map[string][]int)
		for name, given := range sizes {
			if err := checkSizes(name, *given); err != nil {
				return err
			}
			o.Sizes[name] = *given
		}
		return command.With(func(path string) error {
			o.Binary = path
			return runScale(c.Context(), o, svg, asJSON)
		})
	}
	return c
}

// checkSizes returns an error unless the sizes of a curve are in increasing order and possible.
func checkSizes(name string, sizes []int) error {
	for i, size := range sizes {
		switch {
		case i > 0 && size <= sizes[i-1]:
			return fmt.Errorf("--%s %v: must be in increasing order", name, sizes)
		case size < 0, size == 0 && name != "waiting":
			return fmt.Errorf("--%s %d: must be positive", name, size)
		case name == "members" && size != 1 && size != 3 && size != 5:
			return fmt.Errorf("--members %d: must be 1, 3 or 5", size)
		}
	}
	return nil
}

// runScale measures the curves and writes what is known of them, also after an error.
func runScale(ctx context.Context, o bench.ScaleOptions, svg string, asJSON bool) error {
	curves, err := bench.RunScale(ctx, o)
	if len(curves) > 0 && !asJSON {
		fmt.Println()
		err = errors.Join(err, bench.WriteTables(os.Stdout, curves))
	}
	if svg != "" && err == nil {
		err = bench.WritePictures(svg, curves)
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted; nothing was left running")
	}
	return command.Fail(err)
}
