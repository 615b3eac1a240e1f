package metrics

import (
	"cmp"
	"slices"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/web"
)

// maxSchemaLabels is how many schemas have their own series: those with the most violations.
// The rest are added up under [web.Others].
const maxSchemaLabels = 100

// schemaCounts are the counts of the schema of a queue's function.
type schemaCounts struct {
	queue, function string
	api.SchemaCounts
}

func (s *schemaCounts) total() uint64 { return s.Refused + s.Rejected + s.Warned }

// collectSchemas emits the violations of schemas that this node has found.
func (c *Collector) collectSchemas(emit web.Emit) {
	var all []schemaCounts
	c.Schemas(func(s *ledger.Schema, counts api.SchemaCounts) {
		all = append(all, schemaCounts{s.Queue, s.Function, counts})
	})
	slices.SortStableFunc(all, func(a, b schemaCounts) int { return cmp.Compare(b.total(), a.total()) })
	labelled := all[:min(len(all), maxSchemaLabels)]
	for i := range labelled {
		labelled[i].emit(emit)
	}
	if len(all) == len(labelled) {
		return
	}
	others := schemaCounts{queue: web.Others, function: web.Others}
	for i := range all[len(labelled):] {
		counts := &all[len(labelled)+i]
		others.Refused, others.Rejected, others.Warned = others.Refused+counts.Refused, others.Rejected+counts.Rejected, others.Warned+counts.Warned
	}
	others.emit(emit)
}

func (s *schemaCounts) emit(emit web.Emit) {
	emit("yard_schema_violations_total", float64(s.Refused), s.queue, s.function, "refused")
	emit("yard_schema_violations_total", float64(s.Rejected), s.queue, s.function, "rejected")
	emit("yard_schema_violations_total", float64(s.Warned), s.queue, s.function, "warned")
}
