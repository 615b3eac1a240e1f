package runnerpool

import (
	"slices"
	"strings"
)

// inheritedEnv are the variables of the node's environment that every managed process
// inherits, where "X*" stands for all names that begin with X: what programs need to
// run, to speak the user's language and to reach the network, and the settings of the
// usual runtimes and of RRQ's. The node's environment may also hold the credentials of
// the yard and of others, which a handler must not see unless it is meant to.
var inheritedEnv = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "TERM", "TZ", "TZDIR", "LANG", "LANGUAGE", "LC_*",
	"TMPDIR", "TMP", "TEMP", "XDG_*", "LD_LIBRARY_PATH", "LD_PRELOAD", "MALLOC_*", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
	"PYTHON*", "VIRTUAL_ENV", "CONDA_*", "PYENV_*", "UV_*", "NODE_*", "NVM_*", "BUN_*", "DENO_*", "RUST_*", "RUSTUP_*", "CARGO_HOME",
	"GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK", "JAVA_*", "GEM_*", "RUBY*", "BUNDLE_*",
	"OTEL_*", "RRQ_*", "CUDA_*", "NVIDIA_*", "OMP_*",
}

// withheldEnv are variables that no process inherits, whatever its configuration lists:
// the socket and marker of a node that is itself a runner, and the yard's secrets.
var withheldEnv = []string{socketEnv, markerEnv, "YARD_CLUSTER_SECRET", "YARD_SERVER_TOKEN", "YARD_HTTP_TOKEN"}

// inherits reports whether a process of r inherits the named variable of the node's
// environment.
func (r *RunnerConfig) inherits(name string) bool {
	return !slices.Contains(withheldEnv, name) && (matchesEnv(inheritedEnv, name) || matchesEnv(r.InheritEnv, name))
}

// matchesEnv reports whether one of patterns is the name, or ends with "*" and is
// otherwise the beginning of the name.
func matchesEnv(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		prefix, isPrefix := strings.CutSuffix(pattern, "*")
		return pattern == name || isPrefix && strings.HasPrefix(name, prefix)
	})
}

// isEnvPattern reports whether s is the name of a variable, of which the end may be "*".
func isEnvPattern(s string) bool {
	return s != "" && !strings.ContainsAny(s, "= \t\x00") && !strings.Contains(strings.TrimSuffix(s, "*"), "*")
}
