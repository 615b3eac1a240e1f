package web

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
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
	document := schema{
		"openapi": "3.1.0",
		"info": schema{
			"title": "Yardmaster", "version": version,
			"description": "Jobs, queues and the state of the yard. The NATS API under yard.api.v1 gives the same replies.",
		},
		"paths": paths,
		"components": schema{
			"schemas": schema{"Error": schemaOf(reflect.TypeFor[api.ErrorReply](), true)},
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

// operation returns the OpenAPI operation of the endpoint: its parameters in the path and
// the query, its body if the method has one, and its responses.
func (e *endpoint) operation() schema {
	parameters := []schema{}
	fields := fieldsOf(reflect.TypeOf(e.Request))
	for _, name := range e.wildcards {
		kind := reflect.TypeFor[string]()
		if f := findField(fields, name); f != nil && name != e.Token {
			kind = f.kind
		}
		s := schemaOf(kind, false)
		if s["type"] == "array" { // the path has one of its items
			s = s["items"].(schema)
		}
		parameters = append(parameters, schema{"name": name, "in": "path", "required": true, "schema": s})
	}
	for _, name := range strings.Fields(e.Query) {
		parameters = append(parameters, schema{"name": name, "in": "query", "schema": durationSchema()})
	}
	operation := schema{
		"operationId": e.Name, "summary": e.Summary,
		"responses": schema{
			strconv.Itoa(e.Status): schema{"description": "success", "content": content(schemaOf(reflect.TypeOf(e.Reply), true))},
			"default": schema{
				"description": "error; 503 and 429 have the header Retry-After",
				"content":     content(schema{"$ref": "#/components/schemas/Error"}),
			},
		},
	}
	if e.Indexed {
		success := operation["responses"].(schema)[strconv.Itoa(e.Status)].(schema)
		success["headers"] = schema{api.HeaderIndex: schema{
			"description": "index of the last ledger entry that the response shows", "schema": schema{"type": "integer"},
		}}
	}
	if e.Content {
		binary := schema{
			"application/json":    schema{"schema": schema{}},
			"application/msgpack": schema{"schema": schema{"type": "string", "format": "binary"}},
		}
		responses := operation["responses"].(schema)
		responses["200"] = schema{"description": "all of it", "content": binary}
		responses["206"] = schema{"description": "the bytes that the header Range asks for", "content": binary}
	}
	if e.WaitReply != nil {
		operation["responses"].(schema)["200"] = schema{
			"description": "the job, if the request waited for its end", "content": content(schemaOf(reflect.TypeOf(e.WaitReply), true)),
		}
	}
	properties := schema{}
	for _, k := range e.keys {
		if e.hasBody() {
			properties[k.key] = schemaOf(k.kind, false)
			if shape, ok := e.Shapes[k.key]; ok { // the type is any JSON
				properties[k.key] = shapeSchema(&shape)
			}
			continue
		}
		p := schema{"name": k.key, "in": "query", "schema": schemaOf(k.kind, false)}
		if name, ok := strings.CutSuffix(k.key, "_ms"); ok {
			p["name"], p["schema"] = name, durationSchema()
		}
		if slices.Contains(strings.Fields(e.Required), k.key) {
			p["required"] = true
		}
		parameters = append(parameters, p)
	}
	if len(properties) > 0 {
		body := schema{"type": "object", "properties": properties}
		if len(e.Required) > 0 {
			body["required"] = strings.Fields(e.Required)
		}
		operation["requestBody"] = schema{"content": content(body), "required": len(e.Required) > 0}
	}
	if len(parameters) > 0 {
		operation["parameters"] = parameters
	}
	return operation
}

// shapeSchema returns the schema of a key of a request that is raw JSON in its struct.
func shapeSchema(shape *api.Shape) schema {
	s := schemaOf(reflect.TypeOf(shape.Of), false)
	if fields, ok := s["properties"].(schema); ok {
		delete(fields, shape.Without)
	}
	if shape.List {
		return schema{"type": "array", "items": s}
	}
	return s
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
