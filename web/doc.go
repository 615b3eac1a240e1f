// Package web is a node's HTTP server: health checks, metrics, and the JSON API
// under /v1 with its OpenAPI document.
//
//	/healthz /readyz ── always, without a token
//	/v1/…            ── token ── Route ── Request ── Route.Handle
//	/metrics         ── token ── values collected on each scrape
//
// The package knows no endpoint. Package node passes [Route]s whose handlers also
// serve the NATS API, so both give the same replies. This package enforces access
// and limits: tokens, the number of connections and requests, the time for a
// request to arrive, and the memory for request bodies.
package web
