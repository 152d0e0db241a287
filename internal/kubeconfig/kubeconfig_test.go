package kubeconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"
	"k8s.io/client-go/tools/clientcmd"
	kyaml "sigs.k8s.io/yaml"
)

func entryOf(name string) Entry {
	dir := "/data/" + name
	return Entry{
		Name: "rootlessnode-" + name, Server: "https://127.0.0.1:6443",
		CAFile: dir + "/ca.crt", CertFile: dir + "/admin.crt", KeyFile: dir + "/admin.key",
	}
}

// newFiles returns a kubeconfig with the given content; with "" it does not exist.
func newFiles(t *testing.T, content string) (Files, string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, ".kube", "config")
	if content != "" {
		assert.NilError(t, os.Mkdir(filepath.Dir(path), 0o755))
		assert.NilError(t, os.WriteFile(path, []byte(content), 0o640))
	}
	return Files{Paths: []string{path}, Records: filepath.Join(dir, "records")}, path
}

func (f Files) mustMerge(t *testing.T, name string) string {
	t.Helper()
	path, err := f.Merge(entryOf(name))
	assert.NilError(t, err)
	return path
}

func (f Files) mustUnmerge(t *testing.T, name string) {
	t.Helper()
	_, err := f.Unmerge("rootlessnode-"+name, nil)
	assert.NilError(t, err)
}

func content1(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	assert.NilError(t, err)
	return string(b)
}

// works checks that clientcmd, which kubectl uses, finds the entries of the nodes.
func works(t *testing.T, path, current string, nodes ...string) {
	t.Helper()
	cfg, err := clientcmd.LoadFromFile(path)
	assert.NilError(t, err)
	for _, name := range nodes {
		e := entryOf(name)
		assert.Equal(t, cfg.Contexts[e.Name].Cluster, e.Name)
		assert.Equal(t, cfg.Clusters[cfg.Contexts[e.Name].Cluster].Server, e.Server)
		assert.Equal(t, cfg.AuthInfos[cfg.Contexts[e.Name].AuthInfo].ClientKey, e.KeyFile)
	}
	assert.Equal(t, cfg.CurrentContext, current)
}

// others are kubeconfigs of users, with the current context.
var others = map[string]struct{ text, current string }{
	"kubectl": {`apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: Zm9v
    server: https://example.com:6443
  name: work
contexts:
- context:
    cluster: work
    user: me
  name: work
current-context: work
kind: Config
preferences: {}
users:
- name: me
  user:
    token: secret
`, "work"},
	"comments and indented lists": {`# my clusters
apiVersion: v1
kind: Config
current-context: "work" # the default
clusters: # all of them
  # the big one
  - name: work

    cluster: {server: "https://example.com"}   # flow
  # old
  - cluster:
      server: https://old.example.com
    name: "old"
  # end of clusters

contexts:
  -
    name: work
    context:
      cluster: work
      user: me
users:
  - {"name": "me", "user": {"token": "ä#"}}
# last line`, "work"},
	"empty lists":                   {"apiVersion: v1\nkind: Config\nclusters: []\ncontexts: null\nusers:   ~ # none\ncurrent-context: \"\"\n", ""},
	"empty fields without newline":  {"apiVersion: v1\nkind: Config\ncurrent-context:\nclusters:\ncontexts:\nusers:", ""},
	"missing fields":                {"# top\napiVersion: v1\nkind: Config\n", ""},
	"missing fields, no newline":    {"apiVersion: v1\nkind: Config", ""},
	"indented document":             {"  apiVersion: v1\n  kind: Config\n  users: []\n", ""},
	"document marker":               {"---\napiVersion: v1\nkind: Config\nclusters: []\n", ""},
	"only comments":                 {"# nothing here yet\n", ""},
	"only comments without newline": {"# nothing here yet", ""},
	"only a document marker":        {"---\n", ""},
	"only a blank line":             {"\n", ""},
	"windows":                       {"apiVersion: v1\r\nkind: Config\r\nclusters: []\r\nusers:\r\n- name: me\r\n  user: {}\r\n", ""},
	"quoted fields":                 {"\"apiVersion\": v1\n'clusters': []\n\"current-context\": ''\n", ""},
	"json": {`{"kind":"Config","apiVersion":"v1","clusters":[{"name":"ä","cluster":{"server":"https://example.com"}}],` +
		`"users":[],"contexts":[ ],"current-context":""}`, ""},
	"json in lines": {"{\n  \"clusters\": [\n    {\"name\": \"a\", \"cluster\": {}},\n    {\"name\": \"b\", \"cluster\": {}}\n  ],\n" +
		"  \"users\": [\n    {\"name\": \"a\", \"user\": {}}\n  ],\n  \"contexts\": [],\n  \"current-context\": \"x\"\n}\n", "x"},
	"aliases": {"clusters: &all\n- &c\n  name: a\n  cluster: {}\nusers: []\nx: *c\ncontexts: []\ncurrent-context: a\n", "a"},
}

// The file is as before, byte by byte, after all nodes are removed, in any order, and works meanwhile.
func TestUnmergeRestoresTheFile(t *testing.T) {
	t.Parallel()
	for name, other := range others {
		for _, order := range []string{"a", "ab", "ba"} {
			t.Run(name+" "+order, func(t *testing.T) {
				t.Parallel()
				f, path := newFiles(t, other.text)
				current := other.current
				if current == "" {
					current = "rootlessnode-a"
				}
				f.mustMerge(t, "a")
				works(t, path, current, "a")
				merged := content1(t, path)
				assert.Equal(t, f.mustMerge(t, "a"), path)
				assert.Equal(t, content1(t, path), merged, "a second merge changes nothing")
				if len(order) == 2 {
					f.mustMerge(t, "b")
					works(t, path, current, "a", "b")
				}
				for _, node := range strings.Split(order, "") {
					f.mustUnmerge(t, node)
				}
				assert.Equal(t, content1(t, path), other.text)
				st, err := os.Stat(path)
				assert.NilError(t, err)
				assert.Equal(t, st.Mode().Perm(), os.FileMode(0o640))
				_, err = os.Stat(f.Records)
				assert.Assert(t, os.IsNotExist(err), "the record is removed")
				left, err := os.ReadDir(filepath.Dir(path))
				assert.NilError(t, err)
				assert.Equal(t, len(left), 1, "no other files stay: %v", left)
			})
		}
	}
}

// A file and a directory that did not exist are removed again, also if kubectl has changed the file.
func TestUnmergeRemovesCreatedFile(t *testing.T) {
	t.Parallel()
	for _, order := range []string{"a", "ab", "ba"} {
		for _, rewritten := range []bool{false, true} {
			f, path := newFiles(t, "")
			f.mustMerge(t, "a")
			f.mustMerge(t, "b")
			works(t, path, "rootlessnode-a", "a", "b")
			st, err := os.Stat(path)
			assert.NilError(t, err)
			assert.Equal(t, st.Mode().Perm(), os.FileMode(0o600))
			if rewritten {
				cfg, err := clientcmd.LoadFromFile(path)
				assert.NilError(t, err)
				cfg.CurrentContext = "rootlessnode-b"
				assert.NilError(t, clientcmd.WriteToFile(*cfg, path))
			}
			for _, node := range strings.Split(order, "") {
				f.mustUnmerge(t, node)
			}
			if len(order) == 1 {
				works(t, path, map[bool]string{true: "rootlessnode-b"}[rewritten], "b")
				f.mustUnmerge(t, "b")
			}
			_, err = os.Stat(filepath.Dir(path))
			assert.Assert(t, os.IsNotExist(err), "%s rewritten %t", order, rewritten)
		}
	}
}

// kubectl may format the file in another way between merge and unmerge. Then the content is as before.
func TestUnmergeAfterKubectl(t *testing.T) {
	t.Parallel()
	for name, other := range others {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, path := newFiles(t, other.text)
			f.mustMerge(t, "a")
			text, err := kyaml.Marshal(decoded(t, content1(t, path)))
			assert.NilError(t, err)
			assert.NilError(t, os.WriteFile(path, text, 0o600))
			works(t, path, decoded(t, string(text)).current(), "a")
			f.mustUnmerge(t, "a")
			assert.DeepEqual(t, decoded(t, content1(t, path)).without(""), decoded(t, other.text).without(""))
		})
	}
}

func decoded(t *testing.T, text string) content {
	t.Helper()
	c, err := decode([]byte(text))
	assert.NilError(t, err)
	return c
}

// An update changes only what belongs to the node, and keeps what the user has added to its entries.
func TestMergeUpdates(t *testing.T) {
	t.Parallel()
	f, path := newFiles(t, others["comments and indented lists"].text)
	f.mustMerge(t, "a")
	text := strings.Replace(content1(t, path), "    cluster: rootlessnode-a\n", "    cluster: rootlessnode-a\n      namespace: team\n", 1)
	assert.Assert(t, cmp.Contains(text, "namespace: team"))
	assert.NilError(t, os.WriteFile(path, []byte(text), 0o600))
	e := entryOf("a")
	e.Server = "https://127.0.0.1:7443"
	_, err := f.Merge(e)
	assert.NilError(t, err)
	cfg, err := clientcmd.LoadFromFile(path)
	assert.NilError(t, err)
	assert.Equal(t, cfg.Clusters[e.Name].Server, e.Server)
	assert.Equal(t, cfg.Contexts[e.Name].Namespace, "team")
	f.mustUnmerge(t, "a")
	assert.Equal(t, content1(t, path), others["comments and indented lists"].text)
}

// A file that cannot be changed safely stays as it is, and the error names it.
func TestMergeRefuses(t *testing.T) {
	t.Parallel()
	for want, text := range map[string]string{
		"not a kubeconfig: yaml": "apiVersion: v1\nclusters: [\n",
		"not a YAML mapping":     "hello\n",
		"several YAML documents": "apiVersion: v1\n---\napiVersion: v1\n",
		"already defined":        "clusters: []\nclusters: []\n",
		"clusters is not a list": "clusters: {a: b}\n",
		"no list of clusters":    "{}",
		"format of the file":     "clusters: [\n]\n",
		"of another cluster":     "clusters:\n- name: rootlessnode-a\n  cluster: {server: https://other}\n",
	} {
		f, path := newFiles(t, text)
		_, err := f.Merge(entryOf("a"))
		assert.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, path)
		assert.Equal(t, content1(t, path), text)
	}
}

func TestMergeKeepsLinks(t *testing.T) {
	t.Parallel()
	f, path := newFiles(t, others["kubectl"].text)
	for _, dangling := range []bool{false, true} {
		target := filepath.Join(t.TempDir(), "dotfiles")
		assert.NilError(t, os.Remove(path))
		assert.NilError(t, os.Symlink(target, path))
		if !dangling {
			assert.NilError(t, os.WriteFile(target, []byte(others["kubectl"].text), 0o600))
		}
		f.mustMerge(t, "a")
		got, err := os.Readlink(path)
		assert.NilError(t, err)
		assert.Equal(t, got, target)
		assert.Assert(t, cmp.Contains(content1(t, target), "rootlessnode-a"))
		f.mustUnmerge(t, "a")
		_, err = os.Stat(target)
		assert.Equal(t, os.IsNotExist(err), dangling)
	}
}

func TestMergeWaitsForLock(t *testing.T) {
	t.Parallel()
	f, path := newFiles(t, others["kubectl"].text)
	assert.NilError(t, os.WriteFile(path+".lock", nil, 0))
	_, err := f.Merge(entryOf("a"))
	assert.ErrorContains(t, err, "locked")
	assert.Equal(t, content1(t, path), others["kubectl"].text)
}

// With several files, an entry is updated where it is. A new one is added to the first file that exists.
func TestMergeSeveralFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second, third := filepath.Join(dir, "1"), filepath.Join(dir, "2"), filepath.Join(dir, "3")
	paths, err := Paths(strings.Join([]string{"", first, second, "", first, third}, ":"), "")
	assert.NilError(t, err)
	assert.DeepEqual(t, paths, []string{first, second, third})
	f := Files{Paths: paths, Records: filepath.Join(dir, "records"), Skip: func(path string) bool { return path == first }}
	assert.NilError(t, os.WriteFile(first, nil, 0o600))
	assert.Equal(t, f.mustMerge(t, "a"), third)
	assert.NilError(t, os.WriteFile(second, []byte(others["kubectl"].text), 0o600))
	assert.Equal(t, f.mustMerge(t, "a"), third)
	assert.Equal(t, f.mustMerge(t, "b"), second)
	works(t, third, "rootlessnode-a", "a")
	f.Paths = nil // another KUBECONFIG
	f.mustUnmerge(t, "a")
	f.mustUnmerge(t, "b")
	_, err = os.Stat(third)
	assert.Assert(t, os.IsNotExist(err))
	assert.Equal(t, content1(t, second), others["kubectl"].text)
	f.Paths, f.Skip = []string{first}, func(string) bool { return true }
	assert.Equal(t, f.mustMerge(t, "a"), "")
}

// Without a record, entries are removed only if they belong to the node.
func TestUnmergeWithoutRecord(t *testing.T) {
	t.Parallel()
	f, path := newFiles(t, others["kubectl"].text)
	f.mustMerge(t, "a")
	assert.NilError(t, os.RemoveAll(f.Records))
	merged := content1(t, path)
	_, err := f.Unmerge("rootlessnode-a", func(string) bool { return false })
	assert.NilError(t, err)
	assert.Equal(t, content1(t, path), merged)
	_, err = f.Unmerge("rootlessnode-a", func(cert string) bool { return cert == entryOf("a").CertFile })
	assert.NilError(t, err)
	assert.Equal(t, content1(t, path), others["kubectl"].text)
}

// FuzzMerge checks with arbitrary files that a merge either fails without a change, or can be undone.
func FuzzMerge(f *testing.F) {
	for _, other := range others {
		f.Add(other.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		x := &edit{text: []byte(text)}
		if x.merge(entryOf("a"), true) != nil {
			return
		}
		assert.NilError(t, x.unmerge("rootlessnode-a"), "%s", text)
		if x.original != nil && x.isEmpty() {
			x.text = []byte(*x.original)
		}
		if x.has("rootlessnode-a") || strings.Contains(text, "rootlessnode-a") {
			return
		}
		assert.Equal(t, string(x.text), text)
	})
}
