package cli

import (
	"testing"
	"testing/fstest"
)

func TestAvailableMemory(t *testing.T) {
	const gib = 1 << 30
	const meminfo = "MemTotal:        4194304 kB\nMemFree:          100 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64 // 0: unknown
	}{
		"no Linux":      {nil, 0},
		"a machine":     {map[string]string{"proc/meminfo": meminfo}, 4 * gib},
		"nonsense":      {map[string]string{"proc/meminfo": "MemTotal: much kB\nMemTotal:\n", "proc/self/cgroup": "x\n\n"}, 0},
		"no limit (v2)": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 4 * gib},
		"a container (v2)": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1073741824\n",
		}, gib},
		"a service in a slice (v2)": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/system.slice/yard.service\n",
			"sys/fs/cgroup/system.slice/memory.max":              "2147483648\n",
			"sys/fs/cgroup/system.slice/yard.service/memory.max": "max\n",
		}, 2 * gib},
		"a group that is not to be seen (v2)": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/../../elsewhere\n", "sys/fs/cgroup/memory.max": "3221225472\n",
		}, 3 * gib},
		"no limit (v1)": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "9:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 4 * gib},
		"a container (v1)": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "3:cpu,cpuacct:/docker/abc\n9:hugetlb,memory:/docker/abc\n1:name=systemd:/docker/abc\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n",
			"sys/fs/cgroup/cpu/memory.limit_in_bytes":    "1\n",
		}, gib},
		"both, the smaller counts": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "9:memory:/a\n0::/a\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1073741824\n",
			"sys/fs/cgroup/a/memory.max":                   "2147483648\n",
		}, gib},
		"more than the machine has": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "68719476736\n",
		}, 4 * gib},
	} {
		root := fstest.MapFS{}
		for file, text := range c.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		got, known := availableMemory(root)
		if known != (c.want > 0) || known && got != c.want {
			t.Errorf("%s: %d bytes, known: %t; want %d", name, got, known, c.want)
		}
	}
	for available, want := range map[int64]int64{4 * gib: 2 * gib, gib / 2: gib / 4, gib / 8: gib / 4} {
		if got := memoryLimit(available); got != want {
			t.Errorf("limit of %d bytes is %d, want %d", available, got, want)
		}
	}
}
