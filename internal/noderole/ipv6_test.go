package noderole

import (
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
)

func TestNodeIPv6(t *testing.T) {
	t.Parallel()
	for driver, want := range map[string]string{
		config.DriverSlirp: "fd00::100", config.DriverNone: "fd00::100", config.DriverLXCUserNIC: "fd00::a00:34d",
	} {
		got, err := nodeIPv6(driver, "10.0.3.77")
		assert.NilError(t, err)
		assert.Equal(t, got.String(), want, driver)
	}
	_, err := nodeIPv6(config.DriverLXCUserNIC, "")
	assert.ErrorContains(t, err, "is not an IPv4 address")
}

func TestPodRangesMatch(t *testing.T) {
	t.Parallel()
	four, both := []string{"10.42.0.0/16"}, []string{"10.42.0.0/16", "fd00:10:42::/56"}
	for _, c := range []struct {
		node, cluster []string
		want          bool
	}{
		{nil, both, true},
		{[]string{"10.42.0.0/24"}, four, true},
		{[]string{"10.42.0.0/24"}, both, false},
		{[]string{"10.42.0.0/24", "fd00:10:42::/64"}, both, true},
		{[]string{"10.42.0.0/24", "fd00:10:42::/64"}, four, false},
		{[]string{"10.142.0.0/24"}, four, false},
		{[]string{"10.0.0.0/8"}, four, false},
		{[]string{"x"}, four, false},
	} {
		assert.Equal(t, podRangesMatch(c.node, c.cluster), c.want, "%v of %v", c.node, c.cluster)
	}
}
