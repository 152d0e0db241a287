package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// addonFiles are an addon whose objects need each other in an order that is not that of the files, and an addon with a fault.
var addonFiles = map[string]string{
	"shop/10-thing.yaml": "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: one, namespace: shop}\nspec: {size: 3}\n",
	"shop/20-kinds.yaml": `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {kind: Thing, plural: things, singular: thing, listKind: ThingList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}
`,
	"faulty.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: good}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad}\ndta: {}\n",
}

// addons checks that the addons of a directory are applied, restored, reported and deleted with their files.
func (n *testNode) addons(home string) {
	dir := filepath.Join(home, ".config", "rootlessnode", "addons")
	for name, text := range addonFiles {
		path := filepath.Join(dir, name)
		assert.NilError(n.t, os.MkdirAll(filepath.Dir(path), 0o755))
		assert.NilError(n.t, os.WriteFile(path, []byte(text), 0o644))
	}
	c := n.awaitCondition(status.ConditionAddons, "the fault is reported", func(c status.Condition) bool {
		return c.OK && c.Warning && strings.Contains(c.Message, "faulty: "+dir+"/faulty.yaml:5: apply ConfigMap bad: ")
	})
	assert.Assert(n.t, !strings.Contains(c.Message, "shop"), c.Message)
	n.kubectl("get", "configmap", "good")
	size := func() string { return n.kubectl("get", "things", "-n", "shop", "-o", "jsonpath={.items[*].spec.size}") }
	eventually(n.t, podLimit, "the addon is applied in order", func() error { return equal(size(), "3") })
	n.kubectl("patch", "thing", "one", "-n", "shop", "--type=merge", `--patch={"spec":{"size":4}}`)
	eventually(n.t, podLimit, "a changed object is restored", func() error { return equal(size(), "3") })
	n.kubectl("delete", "thing", "one", "-n", "shop")
	eventually(n.t, podLimit, "a deleted object is restored", func() error { return equal(size(), "3") })

	assert.NilError(n.t, os.Remove(filepath.Join(dir, "shop", "10-thing.yaml")))
	eventually(n.t, podLimit, "an object without a file is deleted", func() error { return equal(size(), "") })
	assert.NilError(n.t, os.RemoveAll(dir))
	eventually(n.t, podLimit, "addons without files are deleted", func() error {
		return equal(n.kubectl("get", "crds,configmaps,namespaces", "-A", "-l", "applyset.kubernetes.io/part-of", "-o", "name")+
			n.kubectl("get", "configmaps", "-n", "kube-system", "-l", "applyset.kubernetes.io/id", "-o", "name"), "")
	})
}

func equal(got, want string) error {
	if got != want {
		return fmt.Errorf("got %q, want %q", got, want)
	}
	return nil
}
