package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/yardmaster-dev/yardmaster/internal/similar"
	"github.com/yardmaster-dev/yardmaster/runnerpool"
)

// replacedKeys are keys of the Overhop server and of earlier builds, with what replaces
// them.
var replacedKeys = map[string]string{
	"logging.level":                "use node.log_level",
	"logging.human_friendly":       "use node.log_format",
	"heartbeat.interval_ms":        "the interval is fixed",
	"storage.engine":               "jobs are stored in JetStream",
	"storage.path":                 "use node.data_dir",
	"storage.self_debug_path":      "there is no such mode",
	"storage.sled.cache_capacity":  "there is no sled; nats.max_store_bytes bounds what streams fill on disk",
	"storage.sled.mode":            "there is no sled, and nothing to set",
	"pagination.default_page_size": "use pagination.page_size",
}

// retiredKeys are keys of earlier builds that have no effect any more, with what applies
// instead. They are accepted so that such a configuration still works.
var retiredKeys = map[string]string{
	"delivery.recall_grace":    "a recalled job has 2 s to end",
	"delivery.settle_wait":     "DONE and FAIL wait 3 s for their commit, less if delivery.lease is shorter",
	"nats.primary_lane":        "each member publishes to its own lane",
	"pagination.max_page_size": "a page has at most 1000 jobs, or pagination.page_size if that is larger",
	"scrub.bytes_per_second":   "nodes do not read their replicas from the disk any more",
	"scrub.every":              "nodes do not read their replicas from the disk any more",
}

// isRetiredTable reports whether name is a table of retired keys.
func isRetiredTable(name string) bool {
	for key := range retiredKeys {
		if strings.HasPrefix(key, name+".") {
			return true
		}
	}
	return false
}

// retiredVariables returns the environment variables that are set and have no effect any
// more, each with the reason.
func retiredVariables(lookup func(string) (string, bool)) (ignored []string) {
	for _, key := range slices.Sorted(maps.Keys(retiredKeys)) {
		if _, isSet := lookup(variableName(key)); isSet {
			ignored = append(ignored, variableName(key)+" ("+retiredKeys[key]+")")
		}
	}
	return ignored
}

// unknownKeys returns a text about all unknown keys of a file, or "". Keys of RRQ that have
// no effect here, and retired keys, are no error: ignored lists them with the reason.
func unknownKeys(unknown []toml.Key) (problems string, ignored []string) {
	var unknownTexts []string
	for i, key := range unknown {
		name := key.String()
		if isRetiredTable(name) || i+1 < len(unknown) && strings.HasPrefix(unknown[i+1].String(), name+".") {
			continue // a table whose unknown keys follow
		}
		if name, reason, ok := ignoredKey(key); ok {
			if text := name + " (" + reason + ")"; !slices.Contains(ignored, text) {
				ignored = append(ignored, text)
			}
			continue
		}
		text := "unknown key " + name
		if instead, ok := replacedKeys[name]; ok {
			text += fmt.Sprintf(" (%s)", instead)
		} else if near := nearestKey(key); near != "" {
			text += fmt.Sprintf(" (did you mean %s?)", near)
		}
		unknownTexts = append(unknownTexts, text)
	}
	return strings.Join(unknownTexts, ", "), ignored
}

// ignoredKey returns the reason why a key has no effect, if it is a retired key or a key of
// [rrq] that Yardmaster ignores. name is the key, or the table whose keys all have none.
func ignoredKey(key toml.Key) (name, reason string, ok bool) {
	if reason, ok = retiredKeys[key.String()]; ok {
		return key.String(), reason, true
	}
	if len(key) < 2 || key[0] != "rrq" {
		return "", "", false
	}
	reason, ok = runnerpool.IgnoredKeys[key[1]]
	return "rrq." + key[1], reason, ok
}

// nearestKey returns the key that was probably meant, or "": one of [rrq] that is missing
// its table, or one that differs in few letters.
func nearestKey(key toml.Key) string {
	pattern, runner := slices.Clone(key), ""
	if i := slices.Index(key, "runners") + 1; i > 0 && i+1 < len(key) {
		pattern[i], runner = "<name>", toml.Key{key[i]}.String()
	}
	written := strings.Join(pattern, ".")
	keys := configKeys(reflect.TypeFor[Config](), "")
	for ignored := range runnerpool.IgnoredKeys {
		keys = append(keys, "rrq."+ignored)
	}
	if slices.Contains(keys, "rrq."+written) {
		return "rrq." + key.String()
	}
	slices.Sort(keys)
	near := slices.MinFunc(keys, func(a, b string) int { return similar.Distance(written, a) - similar.Distance(written, b) })
	if similar.Distance(written, near) > 1+len(key[len(key)-1])/3 {
		return ""
	}
	return strings.Replace(near, "<name>", runner, 1)
}

// configKeys returns the keys of a table and of the tables in it. The keys of a table of
// named tables are listed under "<name>".
func configKeys(table reflect.Type, name string) (keys []string) {
	for i := range table.NumField() {
		f := table.Field(i)
		key := f.Tag.Get("toml")
		full := strings.TrimPrefix(name+"."+key, ".")
		kind := f.Type
		switch {
		case key == "-":
		case f.Anonymous:
			keys = append(keys, configKeys(kind, name)...)
		case kind.Kind() == reflect.Struct && kind.NumField() > 0 && kind.Field(0).Tag.Get("toml") != "":
			keys = append(keys, configKeys(kind, full)...)
		case kind.Kind() == reflect.Slice && kind.Elem().Kind() == reflect.Struct:
			keys = append(keys, configKeys(kind.Elem(), full)...)
		case kind.Kind() == reflect.Map && kind.Elem().Kind() == reflect.Struct:
			keys = append(keys, configKeys(kind.Elem(), full+".<name>")...)
		default:
			keys = append(keys, full)
		}
	}
	slices.Sort(keys)
	return keys
}
