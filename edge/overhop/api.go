package overhop

// CapAPI is the capability, in HELLO and HI, of requests of the yard's API by API.
const CapAPI = "api"

// APIRequest is the payload of API, which carries out an operation of the yard's API.
type APIRequest struct {
	Op   string // the operation's name, such as "job.list"
	JSON []byte // the request, a JSON object, in place; empty: one without keys
}

// ParseAPI parses an API. The error is a [*Violation].
func ParseAPI(p Raw) (APIRequest, error) {
	r := newExtensionReader(p, "op", "request_json")
	return APIRequest{Op: r.str("op"), JSON: r.jsonOf("request" + JSONSuffix)}, r.err
}
