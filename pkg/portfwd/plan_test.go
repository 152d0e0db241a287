package portfwd

import (
	"maps"
	"math/rand/v2"
	"testing"

	"gotest.tools/v3/assert"
)

// Applying changes one at a time has the same result as computing everything, including clashes and wildcards.
func TestPatchAgreesWithWanted(t *testing.T) {
	t.Parallel()
	for range 40 {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 0))
		cfg := everything()
		cfg.Static = []Static{{Name: "s", Protocol: "tcp", HostPort: 30003, ChildPort: 1}}
		f, err := New(Options{Manager: newFakeManager(), Endpoints: handEndpoints(), Config: cfg})
		assert.NilError(t, err)
		in := Input{Endpoints: map[Key]Endpoints{}}
		services, pods := map[string]Service{}, map[string]Pod{}
		patched := 0
		for range 200 {
			name := "s" + itoa(rnd.IntN(6))
			switch rnd.IntN(7) {
			case 0:
				delete(services, name)
				sink{&f.in}.Delete("ns", name)
			case 1:
				e := Endpoints{Ready4: rnd.IntN(2) == 0}
				in.Endpoints[Key{"ns", name}] = e
				endpointSink{&f.in, func() {}}.Set(Key{"ns", name}, e)
			case 2:
				p := Pod{Namespace: "ns", Name: name, IPs: []string{"10.42.0.5"}, Ports: []PodPort{{HostPort: 30000 + rnd.IntN(30), ContainerPort: 80}}}
				pods[name] = p
				podSink{&f.in}.Set(p)
			case 3:
				delete(pods, name)
				podSink{&f.in}.Delete("ns", name)
			default:
				s := nodePort(name, 30000+rnd.IntN(30))
				if rnd.IntN(3) == 0 {
					s = annotated(s, "bind", []string{"0.0.0.0", "127.0.0.1,wlan0", "x y"}[rnd.IntN(3)])
				}
				services[name] = s
				sink{&f.in}.Set(s)
			}
			if rnd.IntN(3) == 0 {
				continue // several changes together
			}
			in.Holders = maps.Clone(f.ledger.holding())
			f.mu.Lock()
			full := f.in.remerge || !f.plan.clean
			f.mu.Unlock()
			f.plan.update()
			if !full {
				patched++
			}
			in.Services, in.Pods = nil, nil
			for _, s := range services {
				in.Services = append(in.Services, s)
			}
			for _, p := range pods {
				in.Pods = append(in.Pods, p)
			}
			want, warnings := Wanted(in, cfg)
			assert.Equal(t, len(f.plan.wanted), len(want), "seed %d", seed)
			for _, w := range want {
				assert.Assert(t, f.plan.wanted[w.Bind] == w, "seed %d: %+v", seed, w)
				assert.Assert(t, *f.entries[w.Bind].want == w, "seed %d: %+v", seed, w)
			}
			for b, e := range f.entries {
				_, wanted := f.plan.wanted[b]
				assert.Assert(t, wanted == (e.want != nil), "seed %d: %s", seed, b)
			}
			assert.Equal(t, f.plan.clean, len(warnings) == 0, "seed %d", seed)
		}
		assert.Assert(t, patched > 0, "seed %d", seed)
	}
}
