package web

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
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
	paths, named := schema{}, &components{schemas: schema{}}
	for _, e := range endpoints {
		path, ok := paths[e.path].(schema)
		if !ok {
			path = schema{}
			paths[e.path] = path
		}
		path[strings.ToLower(e.method)] = e.operation(named)
	}
	paths["/healthz"] = schema{"get": probeOperation("healthz", "whether the process is running", named, false)}
	paths["/readyz"] = schema{"get": probeOperation("readyz", "whether the node is ready, with the reasons if it is not", named, true)}
	paths["/metrics"] = schema{"get": schema{
		"operationId": "metrics", "summary": "the metrics of this node, in Prometheus format",
		"responses": schema{"200": schema{"description": "success", "content": schema{"text/plain": schema{"schema": schema{"type": "string"}}}}},
	}}
	if named.clash != "" {
		return nil, fmt.Errorf("two schemas are named %s", named.clash)
	}
	document := schema{
		"openapi": "3.1.0",
		"info": schema{
			"title": "Yardmaster", "version": version,
			"description": "Jobs, queues and the state of the yard. The NATS API under yard.api.v1 gives the same replies.",
		},
		"paths": paths,
		"components": schema{
			"schemas": named.schemas,
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

// schemaPath is the beginning of a reference to a named schema.
const schemaPath = "#/components/schemas/"

// components holds the named schemas of a document. The bodies of requests and of responses
// refer to them, so that generated clients have a type with a name for each.
type components struct {
	schemas schema // by name
	clash   string // a name of two schemas; "" means none
}

// add adds a schema and returns a reference to it.
func (c *components) add(name string, s schema) schema {
	if old, ok := c.schemas[name]; ok && !reflect.DeepEqual(old, s) {
		c.clash = name
	}
	c.schemas[name] = s
	return schema{"$ref": schemaPath + name}
}

// addReply adds the schema of a reply of an endpoint and returns a reference to it. The
// schema's name is that of the type, Value if the reply may be any JSON.
func (c *components) addReply(endpoint string, kind reflect.Type) schema {
	s := schemaOf(kind, true)
	if len(s) == 0 {
		return c.add("Value", schema{"description": "any JSON"})
	}
	return c.add(cmp.Or(kind.Name(), exported(endpoint)+"Reply"), s)
}

// exported returns the name of an endpoint as one word: JobShow for job-show.
func exported(name string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(name, "-") {
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}

// content returns the content of a body with the schema s.
func content(s schema) schema { return schema{"application/json": schema{"schema": s}} }

// durationSchema returns the schema of a parameter that is a duration.
func durationSchema() schema {
	return schema{"type": "string", "description": "a duration, such as 30s or 1d"}
}

// probeOperation returns the operation of a health check, which needs no token.
// mayFail is whether it can respond with 503.
func probeOperation(name, summary string, named *components, mayFail bool) schema {
	good := content(named.add(exported(name), schema{"type": "object", "additionalProperties": true}))
	responses := schema{"200": schema{"description": "yes", "content": good}}
	if mayFail {
		responses["503"] = schema{"description": "no", "content": good}
	}
	return schema{"operationId": name, "summary": summary, "security": []schema{}, "responses": responses}
}
