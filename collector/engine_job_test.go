package collector

import (
	"testing"
	"time"

	"github.com/vethexporter/vethexporter/internal/metric"
	"github.com/vethexporter/vethexporter/internal/netns"
)

// TestComingBackWhileGivenUp is the moment at which a worker came back just before it would be left behind: it does nothing
// then that could be passed over, and goes on.
func TestComingBackWhileGivenUp(t *testing.T) {
	e := newEngine(t, nil, steady("one"))
	for name, prepare := range map[string]func(*job){
		"before discovery": func(*job) {},
		"in a visit": func(j *job) {
			j.found, j.visits = &netns.Found{}, []*visit{{ns: &netns.Namespace{Name: "host"}}}
		},
		"after all visits": func(j *job) { j.found = &netns.Found{} },
	} {
		j := e.newJob(t.Context(), e.Collectors())
		prepare(j)
		turn := &turn{job: j}
		j.give(turn)
		if at, hangs := j.revoke(0); hangs {
			t.Errorf("%s: it hangs in %+v", name, at)
		}
		if j.runs["one"].outcomes[outcomeSkipped] != 0 || j.next != 0 || j.node != 0 {
			t.Errorf("%s: something was passed over: %+v", name, j)
		}
		if !j.begin(turn, func() (place, bool) { return place{what: "one"}, true }) {
			t.Errorf("%s: the worker lost its turn", name)
		}
	}
}

// TestPassingOver: a scrape goes on behind what hangs at each of its stages, and counts it as skipped once.
func TestPassingOver(t *testing.T) {
	e := newEngine(t, nil, steady("one"), steady("two"))
	host := &netns.Namespace{Key: netns.Key{Ino: 1}, Name: "host"}
	for _, tt := range []struct {
		name  string
		at    place
		found bool
		skip  map[string]int
		check func(j *job) bool
	}{
		{"node", place{what: "one"}, false, map[string]int{"one": 1}, func(j *job) bool { return j.node == 1 }},
		{"discovery", place{what: discovering}, false, nil, func(j *job) bool { return j.found != nil && len(j.visits) == 0 }},
		{"entry", place{key: host.Key, what: entering}, true, map[string]int{"one": 1, "two": 1},
			func(j *job) bool { return j.next == 1 && j.visits[0].outcome == outcomeSkipped }},
		{"namespace", place{key: host.Key, what: "one"}, true, map[string]int{"one": 1},
			func(j *job) bool {
				return j.next == 0 && j.visits[0].next == 1 && j.visits[0].outcome == outcomeSkipped
			}},
	} {
		j := e.newJob(t.Context(), e.Collectors())
		if tt.found {
			j.found, j.visits = &netns.Found{}, []*visit{{ns: host}}
		}
		turn := &turn{job: j}
		j.give(turn)
		j.begin(turn, func() (place, bool) { return tt.at, true })
		if at, hangs := j.revoke(time.Hour); hangs {
			t.Errorf("%s: %+v hangs after no time", tt.name, at)
		}
		if at, hangs := j.revoke(0); !hangs || at != tt.at || !tt.check(j) {
			t.Errorf("%s: hangs %v in %+v, then %+v", tt.name, hangs, at, j)
		}
		for _, c := range e.Collectors() {
			if got := j.runs[c.Name].outcomes[outcomeSkipped]; got != tt.skip[c.Name] {
				t.Errorf("%s: %d runs of %s were skipped", tt.name, got, c.Name)
			}
		}
	}
}

// TestLateResultsAreRefused: after the end of a scrape, or of its turn, a worker changes nothing.
func TestLateResultsAreRefused(t *testing.T) {
	e := newEngine(t, nil, steady("one"))
	c := e.Collectors()[0]
	j := e.newJob(t.Context(), e.Collectors())
	late := &turn{job: j}
	j.give(late)
	j.found, j.visits = &netns.Found{}, []*visit{{ns: &netns.Namespace{Name: "host"}}}
	v := j.visits[0]
	batch := metric.NewBatch(e.schema)
	sink := batch.Sink(0, "late", 9)
	sink.Emit(c.Metrics[0], 1, "late")
	j.seal()
	j.endRun(late, c, v, outcomeOK, time.Second, batch)
	j.endVisit(late, v, outcomeOK, true)
	if _, ok := j.nextRun(late, v); ok {
		t.Error("a late worker got another collector to run")
	}
	if _, ok := j.nextVisit(late); ok {
		t.Error("a late worker got another namespace to visit")
	}
	if j.snap.Series() != 0 || v.outcome != "" || j.next != 0 || len(j.runs["one"].outcomes) != 0 {
		t.Errorf("a late worker changed the scrape: %d series, %+v", j.snap.Series(), v)
	}
}
