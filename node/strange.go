package node

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"yardmaster/runnerpool"
)

// otherNames are keys of Overhop's own server, and of ours in former days, with
// what does their work here.
var otherNames = map[string]string{
	"logging.level":                "node.log_level does that",
	"logging.human_friendly":       "node.log_format does that",
	"heartbeat.interval_ms":        "there is nothing to set: the yard's clockwork is fixed",
	"storage.engine":               "there is nothing to choose: jobs lie in JetStream",
	"storage.path":                 "node.data_dir does that",
	"storage.self_debug_path":      "there is no such mode",
	"storage.sled.cache_capacity":  "there is no sled; nats.max_store_bytes bounds what streams fill on disk",
	"storage.sled.mode":            "there is no sled, and nothing to set",
	"pagination.default_page_size": "pagination.page_size does that",
}

// strangeKeys says which keys of a file are none, all of them at once; "" if
// there are none. Keys that RRQ knows and that do nothing here are no fault:
// idle says why of each.
func strangeKeys(unknown []toml.Key) (strange string, idle []string) {
	var told []string
	for i, key := range unknown {
		name := key.String()
		if i+1 < len(unknown) && strings.HasPrefix(unknown[i+1].String(), name+".") {
			continue // a table: its keys say more
		}
		if of, why, ok := idleKey(key); ok {
			if says := of + " (" + why + ")"; !slices.Contains(idle, says) {
				idle = append(idle, says)
			}
			continue
		}
		says := "unknown key " + name
		if instead, ok := otherNames[name]; ok {
			says += fmt.Sprintf(" (here %s)", instead)
		} else if near := nearKey(key); near != "" {
			says += fmt.Sprintf(" (did you mean %s?)", near)
		}
		told = append(told, says)
	}
	return strings.Join(told, ", "), idle
}

// idleKey tells a key of [rrq] that does nothing here, or one of a table of
// which all do nothing.
func idleKey(key toml.Key) (of, why string, ok bool) {
	if len(key) < 2 || key[0] != "rrq" {
		return "", "", false
	}
	why, ok = runnerpool.IdleKeys[key[1]]
	return "rrq." + key[1], why, ok
}

// nearKey is the key that somebody may have meant, or "": one in its own
// table, one of [rrq] that stands outside, or one that differs in few letters.
func nearKey(key toml.Key) string {
	pattern, runner := slices.Clone(key), ""
	if i := slices.Index(key, "runners") + 1; i > 0 && i+1 < len(key) {
		pattern[i], runner = "<name>", toml.Key{key[i]}.String()
	}
	written := strings.Join(pattern, ".")
	keys := configKeys(reflect.TypeFor[Config](), "")
	for idle := range runnerpool.IdleKeys {
		keys = append(keys, "rrq."+idle)
	}
	if slices.Contains(keys, "rrq."+written) {
		return "rrq." + key.String()
	}
	slices.Sort(keys)
	near := slices.MinFunc(keys, func(a, b string) int { return distance(written, a) - distance(written, b) })
	if distance(written, near) > 1+len(key[len(key)-1])/3 {
		return ""
	}
	return strings.Replace(near, "<name>", runner, 1)
}

// configKeys lists the keys of a table and the tables in it. A table of named
// tables stands under "<name>".
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
