package drill

import (
	"context"
	"time"

	"yardmaster/drill/disk"
	"yardmaster/drill/hosts"
)

// Drill is one thing to break, and what is promised nevertheless.
type Drill struct {
	Number   int    // of the kind of fault, in docs/drills.md
	Name     string // lower case, with dashes
	Breaks   string // a line: what is broken
	Promises string // a line: what must hold all the same
	Needs    []Means
	Plan     Plan
	Closed   bool          // Run opens the yard itself, it is only laid out
	Patience time.Duration // for all of it; 5 minutes if 0

	// Run breaks it. Its error means that the drill could not be played;
	// promises that were not kept are told to the stage. When it returns, links
	// are healed, nodes that stand still go on and those that ended start again,
	// and the loads it began are ended, drained and judged.
	Run func(ctx context.Context, s *Stage) error
}

// Means is something that a drill needs of the machine.
type Means struct {
	Name    string
	Missing func() string // why it cannot be had; "": it can
}

// Hosts are several hosts with links that can be cut.
var Hosts = Means{Name: "network namespaces", Missing: hosts.Missing}

// Disks are disks of the nodes' own, that can be broken.
var Disks = Means{Name: "disks to mount", Missing: disk.Missing}

// missing says why a drill cannot be played here; "" if it can.
func (d *Drill) missing() string {
	needs := d.Needs
	if d.Plan.Apart || d.Plan.Slow {
		needs = append([]Means{Hosts}, needs...)
	}
	if d.Plan.Disk > 0 {
		needs = append([]Means{Disks}, needs...)
	}
	for _, m := range needs {
		if why := m.Missing(); why != "" {
			return m.Name + ": " + why
		}
	}
	return ""
}

func (d *Drill) patience() time.Duration {
	if d.Patience == 0 {
		return 5 * time.Minute
	}
	return d.Patience
}
