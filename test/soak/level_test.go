package soak

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestJudge checks which series grow: those with a leak, also under noise or a sawtooth,
// and none of those that only vary.
func TestJudge(t *testing.T) {
	const samples = 160
	noise := rand.New(rand.NewPCG(1, 2))
	for name, c := range map[string]struct {
		value   func(i float64) float64
		typical bool
		floor   float64
		grows   bool
	}{
		"flat":               {value: func(float64) float64 { return 100 }},
		"noise":              {value: func(float64) float64 { return 100 + 20*noise.NormFloat64() }},
		"sawtooth":           {value: func(i float64) float64 { return 50 + 4*math.Mod(i, 17) }},
		"long sawtooth":      {value: func(i float64) float64 { return 50 + 2*math.Mod(i, 33) }},
		"falling":            {value: func(i float64) float64 { return 300 - i }},
		"slow approach":      {value: func(i float64) float64 { return 100 * (1 - math.Exp(-(i+30)/20)) }},
		"steps that end":     {value: func(i float64) float64 { return 230 + 17*math.Floor(min(i, 90)/25) }},
		"one peak":           {value: func(i float64) float64 { return 100 + 500*math.Exp(-math.Abs(i-80)/3) }},
		"restarts":           {value: func(i float64) float64 { return 200 - 120*math.Exp(-math.Mod(i, 25)/4) }},
		"below the floor":    {value: func(i float64) float64 { return 1 + i/50 }, floor: 10},
		"zero":               {value: func(float64) float64 { return 0 }},
		"spikes, typical":    {value: func(i float64) float64 { return 10 + 3000*math.Floor(math.Mod(i, 10)/9) }, typical: true},
		"leak":               {value: func(i float64) float64 { return 100 + i/2 }, grows: true},
		"leak in steps":      {value: func(i float64) float64 { return 230 + 17*math.Floor(i/25) }, grows: true},
		"leak with noise":    {value: func(i float64) float64 { return 100 + i/2 + 10*noise.NormFloat64() }, grows: true},
		"leaking sawtooth":   {value: func(i float64) float64 { return 50 + 4*math.Mod(i, 17) + i/2 }, grows: true},
		"slow leak":          {value: func(i float64) float64 { return 400 + i/2 }, grows: true},
		"accelerating":       {value: func(i float64) float64 { return 100 + i*i/400 }, grows: true},
		"leak, typical":      {value: func(i float64) float64 { return 10 + i/10 }, typical: true, grows: true},
		"leak from zero":     {value: func(i float64) float64 { return i }, floor: 10, grows: true},
		"leak with restarts": {value: func(i float64) float64 { return 200 + i - 120*math.Exp(-math.Mod(i, 25)/4) }, grows: true},
	} {
		t.Run(name, func(t *testing.T) {
			values := make([]float64, samples)
			for i := range values {
				values[i] = c.value(float64(i))
			}
			if got := Judge(values, c.typical, c.floor); !got.Judged || got.Grows != c.grows {
				t.Errorf("grows is %t, want %t: %+v", got.Grows, c.grows, got)
			}
		})
	}
}

// TestJudge_TooFew checks that a short series, or one with a gap, is not judged.
func TestJudge_TooFew(t *testing.T) {
	gap := make([]float64, 80)
	for i := range gap[:12] {
		gap[i] = math.NaN()
	}
	for name, values := range map[string][]float64{"none": nil, "short": make([]float64, 23), "gap": gap} {
		if got := Judge(values, false, 0); got.Judged || got.Grows || got.Note == "" {
			t.Errorf("%s: got %+v, want no judgement", name, got)
		}
	}
}
