package jobs

import (
	"fmt"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/internal/duration"

	"github.com/spf13/cobra"
)

// setting is a flag that changes a setting in a request. Its value "none" resets the setting.
type setting struct {
	flag  string
	key   string // in the request
	usage string
	parse func(text string) (any, error)
}

// addSettings adds the flags of settings to c. The function that it returns adds those that are
// given to a request.
func addSettings(c *cobra.Command, settings []setting) func(request map[string]any) error {
	for _, s := range settings {
		c.Flags().String(s.flag, "", s.usage+", or none")
	}
	return func(request map[string]any) error {
		for _, s := range settings {
			if !c.Flags().Changed(s.flag) {
				continue
			}
			text := c.Flags().Lookup(s.flag).Value.String()
			if text == "none" {
				request[s.key] = nil
				continue
			}
			value, err := s.parse(text)
			if err != nil {
				return usererror.Usage(c, "--%s is %q: %v", s.flag, text, err)
			}
			request[s.key] = value
		}
		return nil
	}
}

// number returns a parser of numbers from least to most.
func number(least, most int64) func(text string) (any, error) {
	return func(text string) (any, error) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < least || n > most {
			return nil, fmt.Errorf("must be %d to %d, or none", least, most)
		}
		return n, nil
	}
}

// milliseconds parses a time, and returns it in milliseconds.
func milliseconds(text string) (any, error) {
	d, err := duration.Parse(text)
	if err != nil {
		return nil, err
	}
	if d < time.Millisecond {
		return nil, fmt.Errorf("must be at least 1ms, or none")
	}
	return d.Milliseconds(), nil
}
