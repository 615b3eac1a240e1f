// Package web is a node's HTTP door: whether the node lives and is ready, the
// JSON API under /v1 with the document that describes it, and the metrics.
//
//	/healthz /readyz ── always, for everybody
//	/v1/…            ── token ── Route ── Question ── the roof's handlers
//	/metrics         ── token ── what the roof gathers when it is asked
//
// The room knows no endpoint. The roof hands it [Route]s, whose handlers are
// those that answer over NATS; so an answer is the same by either door. What
// guards a door stands here: who may come in, how many at once, how long a
// question may take to arrive and how much of it is held in memory.
package web
