package web

import (
	"encoding/json"
	"reflect"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
)

// Document returns the OpenAPI 3.1 document of routes, as the server serves it.
// guarded is whether requests need a token.
func Document(version string, guarded bool, routes []Route) ([]byte, error) {
	endpoints, err := newEndpoints(routes)
	if err != nil {
		return nil, err
	}
	return describe(version, guarded, endpoints)
}

// describe returns the OpenAPI 3.1 document of the endpoints, and of the health checks and
// metrics, which are on every node. guarded reports whether requests need a token.
func describe(version string, guarded bool, endpoints []*endpoint) ([]byte, error) {
	paths := schema{}
	for _, e := range endpoints {
		path, ok := paths[e.path].(schema)
		if !ok {
			path = schema{}
			paths[e.path] = path
		}
		path[strings.ToLower(e.method)] = e.operation()
	}
	paths["/healthz"] = schema{"get": probeOperation("healthz", "whether the process is running", false)}
	paths["/readyz"] = schema{"get": probeOperation("readyz", "whether the node is ready, with the reasons if it is not", true)}
	paths["/metrics"] = schema{"get": schema{
		"operationId": "metrics", "summary": "the metrics of this node, in Prometheus format",
		"responses": schema{"200": schema{"description": "success", "content": schema{"text/plain": schema{"schema": schema{"type": "string"}}}}},
	}}
	schemas := schema{"Error": schemaOf(reflect.TypeFor[api.ErrorReply](), true)}
	for _, e := range endpoints {
		e.addForms(schemas)
	}
	document := schema{
		"openapi": "3.1.0",
		"info": schema{
			"title": "Yardmaster", "version": version,
			"description": "Jobs, queues and the state of the yard. The NATS API under yard.api.v1 gives the same replies.",
		},
		"paths": paths,
		"components": schema{
			"schemas": schemas,
			"securitySchemes": schema{"token": schema{
				"type": "http", "scheme": "bearer", "description": "the token of a user in http.users, or http.token; the user's role decides what it may do",
			}},
		},
	}
	document["security"] = []schema{{"token": []string{}}}
	if !guarded {
		document["security"] = []schema{{}, {"token": []string{}}}
	}
	return json.MarshalIndent(document, "", "  ")
}

// content returns the content of a body with the schema s.
func content(s schema) schema { return schema{"application/json": schema{"schema": s}} }

// durationSchema returns the schema of a parameter that is a duration.
func durationSchema() schema {
	return schema{"type": "string", "description": "a duration, such as 30s or 1d"}
}

// probeOperation returns the operation of a health check, which needs no token.
// mayFail is whether it can respond with 503.
func probeOperation(name, summary string, mayFail bool) schema {
	good := content(schema{"type": "object"})
	responses := schema{"200": schema{"description": "yes", "content": good}}
	if mayFail {
		responses["503"] = schema{"description": "no", "content": good}
	}
	return schema{"operationId": name, "summary": summary, "security": []schema{}, "responses": responses}
}
