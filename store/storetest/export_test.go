package storetest

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/oncerpc/oncerpc/store"
)

// Failures runs the cases of a group as Run does, of every group if it is empty. It returns what failed instead of
// failing, by group and case.
func Failures(t *testing.T, open func(t *testing.T) Subject, only string) map[string]string {
	failures := make(map[string]string)
	for _, g := range groups {
		if only != "" && only != g.name {
			continue
		}
		for _, c := range g.cases {
			within(t, true, func(t *testing.T) {
				r := &recorder{T: t}
				r.watch(newCheck(r, open(t), true), c.run)
				if r.failure != "" {
					failures[g.name+"/"+c.name] = r.failure
				}
			})
		}
	}
	return failures
}

// recorder is a T that takes notes.
type recorder struct {
	*testing.T
	failure string
}

func (r *recorder) watch(c *check, run func(c *check)) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if p := recover(); p != nil {
				r.failure = fmt.Sprint("panic: ", p)
			}
		}()
		run(c)
	}()
	<-ended
}

func (r *recorder) Errorf(format string, args ...any) { r.failure = fmt.Sprintf(format, args...) }
func (r *recorder) FailNow()                          { runtime.Goexit() }
func (r *recorder) Skip(...any)                       { runtime.Goexit() }

// Edit changes the record of id where it lies, expired or not. Its bytes are the store's own.
func (m *Memory) Edit(id store.ID, change func(r *store.Record, leaseEnd *time.Time)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.records[id]; r != nil {
		changed := *r
		change(&changed.Record, &changed.leaseEnd)
		m.put(changed)
	}
}

// IDs returns the IDs of all records, expired ones too.
func (m *Memory) IDs() []store.ID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []store.ID
	for id := range m.records {
		ids = append(ids, id)
	}
	return ids
}
