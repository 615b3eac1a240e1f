// Package server answers the requests of the public API, whichever transport they come
// over: about jobs, queues and cron entries.
//
// A handler is a function from a typed request to a typed reply. [JSON] adapts it to the
// endpoints of package cluster, and [Bind] connects the endpoints of package api with
// their handlers by name; HTTP routes are made of the same endpoints. What a handler
// needs besides the request, such as headers, it takes from the context of the call:
// see [Header], [Token], [Release] and [SetIndex].
package server
