package drill

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill/disk"
	"github.com/yardmaster-dev/yardmaster/test/drill/hosts"
)

// Drill is a fault, or a sequence of faults, and what is promised nevertheless.
type Drill struct {
	Number        int    // of the kind of fault; reports use it
	Name          string // lower case, with dashes
	Breaks        string // one line: the fault
	Promises      string // one line: what must hold nevertheless
	Needs         []Requirement
	Plan          Layout
	StartsStopped bool          // Run starts the cluster itself
	Timeout       time.Duration // for the whole drill; 0 means 5 minutes

	// Run injects the faults. It ends with package must if the drill cannot be
	// completed; broken promises are reported with [Harness.Require]. After it returns, the
	// harness heals all faults, restarts nodes, stops the loads, waits for their
	// jobs to end and judges the result.
	Run func(s *Harness)
}

// Requirement is a capability of the machine that a drill needs.
type Requirement struct {
	Name    string
	Missing func() string // returns why it is missing, "" if it is not
}

// HostsRequired is the requirement of simulated hosts with links that can be cut.
var HostsRequired = Requirement{Name: "network namespaces", Missing: hosts.Missing}

// DisksRequired is the requirement of disks whose faults can be injected.
var DisksRequired = Requirement{Name: "disks to mount", Missing: disk.Missing}

// missing returns why the drill cannot run on this machine, or "" if it can.
func (d *Drill) missing() string {
	needs := d.Needs
	if d.Plan.SeparateHosts || d.Plan.SlowLinks {
		needs = append([]Requirement{HostsRequired}, needs...)
	}
	if d.Plan.Disk > 0 {
		needs = append([]Requirement{DisksRequired}, needs...)
	}
	for _, m := range needs {
		if reason := m.Missing(); reason != "" {
			return m.Name + ": " + reason
		}
	}
	return ""
}
