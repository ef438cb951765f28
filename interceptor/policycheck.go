package interceptor

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

// longest keeps every time that a policy leads to within the nanoseconds of an int64.
const longest = 100 * 365 * 24 * time.Hour

// checkPolicy says what makes no sense in p, which may leave anything unset.
func checkPolicy(p *oncerpcv1.MethodPolicy) error {
	for _, d := range []struct {
		name      string
		value     *durationpb.Duration
		mayBeZero bool
	}{
		{"retention", p.GetRetention(), false},
		{"error_retention", p.GetErrorRetention(), false},
		{"timeout", p.GetTimeout(), false},
		{"wait", p.GetWait(), true},
		{"lease", p.GetLease(), false},
	} {
		if d.value == nil {
			continue
		}
		switch v := d.value.AsDuration(); {
		case d.value.CheckValid() != nil:
			return fmt.Errorf("%s: %w", d.name, d.value.CheckValid())
		case v < 0:
			return fmt.Errorf("%s: %v is negative", d.name, v)
		case v == 0 && !d.mayBeZero:
			return fmt.Errorf("%s: it must be more than 0 s; leave it unset for the default", d.name)
		case v > longest:
			return fmt.Errorf("%s: it must be at most 100 years", d.name)
		}
	}
	if p != nil && p.MaxAttempts != nil && p.GetMaxAttempts() < 1 {
		return fmt.Errorf("max_attempts: %d is less than 1", p.GetMaxAttempts())
	}
	if _, ok := oncerpcv1.MethodPolicy_Key_name[int32(p.GetKey())]; !ok {
		return fmt.Errorf("key: %d is not a value that this program knows", p.GetKey())
	}
	if _, ok := oncerpcv1.MethodPolicy_OnCrash_name[int32(p.GetOnCrash())]; !ok {
		return fmt.Errorf("on_crash: %d is not a value that this program knows", p.GetOnCrash())
	}
	_, err := outcomeClasses(p)
	return err
}

var classOf = map[oncerpcv1.MethodPolicy_Class]class{
	oncerpcv1.MethodPolicy_FINAL:     classFinal,
	oncerpcv1.MethodPolicy_AMBIGUOUS: classAmbiguous,
	oncerpcv1.MethodPolicy_RELEASED:  classReleased,
}

// outcomeClasses reads the outcomes of one source.
func outcomeClasses(p *oncerpcv1.MethodPolicy) (map[codes.Code]class, error) {
	classes := make(map[codes.Code]class, len(p.GetOutcomes()))
	for _, rule := range p.GetOutcomes() {
		code := codes.Code(rule.GetCode())
		c, known := classOf[rule.GetClass()]
		switch {
		case code == codes.OK:
			return nil, errors.New("outcomes: a rule needs a code other than OK, which is always final")
		case rule.GetCode() < 0 || code > codes.Unauthenticated:
			return nil, fmt.Errorf("outcomes: %d is not a status code", rule.GetCode())
		case !known:
			return nil, fmt.Errorf("outcomes: the rule for %v needs the class FINAL, AMBIGUOUS or RELEASED", code)
		case classes[code] != 0:
			return nil, fmt.Errorf("outcomes: there are two rules for %v", code)
		}
		classes[code] = c
	}
	return classes, nil
}
