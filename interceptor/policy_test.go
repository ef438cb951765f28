package interceptor

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

// policyText reads a policy from its text form.
func policyText(t testing.TB, text string) *oncerpcv1.MethodPolicy {
	t.Helper()
	p := &oncerpcv1.MethodPolicy{}
	require.NoError(t, prototext.Unmarshal([]byte(text), p))
	return p
}

func common(opts ...Option) commonOptions {
	var o serverOptions
	for _, opt := range opts {
		opt.applyServer(&o)
	}
	return o.common
}

func policyOf(t testing.TB, method string, opts ...Option) *policy {
	t.Helper()
	all, err := newPolicies(common(opts...))
	require.NoError(t, err)
	p, err := all.of(method)
	require.NoError(t, err)
	return p
}

func TestPolicyOfSchema(t *testing.T) {
	t.Run("a_method_without_a_policy_has_the_built_in_one", func(t *testing.T) {
		p := policyOf(t, testpb.TestService_Plain_FullMethodName)
		require.Equal(t, testpb.TestService_Plain_FullMethodName, p.method)
		require.False(t, p.guarded)
		require.False(t, p.idempotent)
		require.Equal(t, oncerpcv1.MethodPolicy_OPTIONAL, p.key)
		require.Equal(t, 24*time.Hour, p.retention)
		require.Equal(t, 24*time.Hour, p.errorRetention)
		require.Equal(t, time.Minute, p.timeout)
		require.Equal(t, 5*time.Second, p.wait)
		require.Equal(t, 30*time.Second, p.lease)
		require.False(t, p.rerun)
		require.Equal(t, 3, p.maxAttempts)
		require.False(t, p.inTransaction)
		require.Empty(t, p.classes)
		require.True(t, p.linked)
		require.False(t, p.streaming)
		require.Equal(t, (&testpb.Response{}).ProtoReflect().Type(), p.output)
	})
	t.Run("a_key_that_the_schema_names_guards", func(t *testing.T) {
		p := policyOf(t, testpb.TestService_Required_FullMethodName)
		require.True(t, p.guarded)
		require.Equal(t, oncerpcv1.MethodPolicy_REQUIRED, p.key)
		require.True(t, policyOf(t, testpb.TestService_Guarded_FullMethodName).guarded)
	})
	t.Run("any_policy_guards", func(t *testing.T) {
		p := policyOf(t, testpb.TestService_Rerun_FullMethodName)
		require.True(t, p.guarded)
		require.True(t, p.rerun)
		require.Equal(t, 2, p.maxAttempts)
	})
	t.Run("a_wait_of_zero_stays_zero", func(t *testing.T) {
		require.Zero(t, policyOf(t, testpb.TestService_Impatient_FullMethodName).wait)
	})
	t.Run("durations_are_taken", func(t *testing.T) {
		p := policyOf(t, testpb.TestService_Brief_FullMethodName)
		require.Equal(t, time.Minute, p.retention)
		require.Equal(t, 10*time.Second, p.errorRetention)
		require.Equal(t, 2*time.Second, p.timeout)
	})
	t.Run("in_transaction_is_taken", func(t *testing.T) {
		require.True(t, policyOf(t, testpb.TestService_InTransaction_FullMethodName).inTransaction)
	})
	t.Run("outcomes_are_taken", func(t *testing.T) {
		require.Equal(t, map[codes.Code]class{
			codes.Aborted: classReleased, codes.Unavailable: classFinal, codes.NotFound: classAmbiguous,
		}, policyOf(t, testpb.TestService_Releasing_FullMethodName).classes)
	})
	t.Run("an_idempotency_level_ignores_keys", func(t *testing.T) {
		for _, method := range []string{testpb.TestService_Read_FullMethodName, testpb.TestService_Put_FullMethodName} {
			p := policyOf(t, method)
			require.Equal(t, oncerpcv1.MethodPolicy_IGNORED, p.key)
			require.True(t, p.idempotent)
			require.False(t, p.guarded)
		}
	})
	t.Run("the_key_field_is_read", func(t *testing.T) {
		p := policyOf(t, testpb.TestService_Fielded_FullMethodName)
		require.Equal(t, "key", p.requestKey(&testpb.FieldedRequest{RequestId: "key"}))
		require.Empty(t, p.requestKey(&testpb.FieldedRequest{}))
		require.Empty(t, p.requestKey((*testpb.FieldedRequest)(nil)))
		require.Empty(t, p.requestKey(nil))
		require.Empty(t, p.requestKey("no message"))
		require.Empty(t, policyOf(t, testpb.TestService_Plain_FullMethodName).requestKey(&testpb.Request{Text: "key"}))
	})
	t.Run("a_message_built_at_run_time_has_its_key_field_too", func(t *testing.T) {
		p := policyOf(t, testpb.TestService_Fielded_FullMethodName)
		fd := build(t, protodesc.ToFileDescriptorProto(testpb.File_testpb_test_proto))
		m := dynamicpb.NewMessage(fd.Messages().ByName("FieldedRequest"))
		m.Set(m.Descriptor().Fields().ByName("request_id"), protoreflect.ValueOfString("key"))
		require.Equal(t, "key", p.requestKey(m))
	})
	t.Run("a_streaming_method_streams", func(t *testing.T) {
		p := policyOf(t, testpb.TestService_Watch_FullMethodName)
		require.True(t, p.streaming)
		require.False(t, p.guarded)
	})
	t.Run("a_generated_request_uses_the_linked_plan", func(t *testing.T) {
		p := policyOf(t, testpb.TestService_Plain_FullMethodName)
		pl, err := p.planOf((&testpb.Request{}).ProtoReflect().Descriptor())
		require.NoError(t, err)
		require.Same(t, p.plan, pl)
	})
}

func TestPolicyPrecedence(t *testing.T) {
	const method = testpb.TestService_Brief_FullMethodName // retention, error_retention, timeout
	t.Run("an_option_goes_before_the_schema_field_by_field", func(t *testing.T) {
		p := policyOf(t, method, WithPolicy(method, policyText(t, `retention: {nanos: 5}`)))
		require.Equal(t, 5*time.Nanosecond, p.retention)
		require.Equal(t, 10*time.Second, p.errorRetention)
	})
	t.Run("the_schema_goes_before_the_default", func(t *testing.T) {
		p := policyOf(t, method, WithDefaultPolicy(policyText(t, `timeout: {seconds: 7} wait: {seconds: 8} key: REQUIRED`)))
		require.Equal(t, 2*time.Second, p.timeout)
		require.Equal(t, 8*time.Second, p.wait)
		require.Equal(t, oncerpcv1.MethodPolicy_REQUIRED, p.key)
	})
	t.Run("the_idempotency_level_goes_before_the_default", func(t *testing.T) {
		p := policyOf(t, testpb.TestService_Put_FullMethodName, WithDefaultPolicy(policyText(t, `key: REQUIRED`)))
		require.Equal(t, oncerpcv1.MethodPolicy_IGNORED, p.key)
		require.False(t, p.guarded)
		require.True(t, p.idempotent)
	})
	t.Run("an_option_goes_before_the_idempotency_level", func(t *testing.T) {
		const put = testpb.TestService_Put_FullMethodName
		p := policyOf(t, put, WithPolicy(put, policyText(t, `key: OPTIONAL`)))
		require.Equal(t, oncerpcv1.MethodPolicy_OPTIONAL, p.key)
		require.True(t, p.guarded)
		require.False(t, p.idempotent)
	})
	t.Run("an_option_that_leaves_the_key_open_leaves_the_idempotency_level", func(t *testing.T) {
		const put = testpb.TestService_Put_FullMethodName
		p := policyOf(t, put, WithPolicy(put, policyText(t, `key: KEY_UNSPECIFIED timeout: {seconds: 1}`)))
		require.Equal(t, oncerpcv1.MethodPolicy_IGNORED, p.key)
		require.False(t, p.guarded)
	})
	t.Run("a_key_that_is_ignored_by_choice_is_not_idempotent", func(t *testing.T) {
		const plain = testpb.TestService_Plain_FullMethodName
		p := policyOf(t, plain, WithPolicy(plain, policyText(t, `key: IGNORED`)))
		require.False(t, p.guarded)
		require.False(t, p.idempotent)
	})
	t.Run("false_goes_before_true", func(t *testing.T) {
		const tx = testpb.TestService_InTransaction_FullMethodName
		require.False(t, policyOf(t, tx, WithPolicy(tx, policyText(t, `in_transaction: false`))).inTransaction)
	})
	t.Run("outcomes_are_merged_by_code", func(t *testing.T) {
		const releasing = testpb.TestService_Releasing_FullMethodName
		p := policyOf(t, releasing,
			WithPolicy(releasing, policyText(t, `outcomes: {code: ABORTED class: FINAL}`)),
			WithDefaultPolicy(policyText(t, `outcomes: {code: NOT_FOUND class: RELEASED} outcomes: {code: INTERNAL class: RELEASED}`)))
		require.Equal(t, map[codes.Code]class{
			codes.Aborted: classFinal, codes.Unavailable: classFinal, codes.NotFound: classAmbiguous, codes.Internal: classReleased,
		}, p.classes)
	})
	t.Run("an_option_mends_a_schema_that_makes_no_sense", func(t *testing.T) {
		const nonsense = testpb.TestService_Nonsense_FullMethodName
		p := policyOf(t, nonsense, WithPolicy(nonsense, policyText(t, `retention: {seconds: 1}`)))
		require.Equal(t, time.Second, p.retention)
	})
	t.Run("the_later_option_replaces_the_earlier", func(t *testing.T) {
		p := policyOf(t, method, WithPolicy(method, policyText(t, `retention: {seconds: 1}`)), WithPolicy(method, policyText(t, `wait: {seconds: 1}`)))
		require.Equal(t, time.Minute, p.retention)
	})
	t.Run("the_default_guards_and_so_does_it_for_methods_that_are_not_linked", func(t *testing.T) {
		def := WithDefaultPolicy(policyText(t, `wait: {seconds: 1}`))
		require.True(t, policyOf(t, testpb.TestService_Plain_FullMethodName, def).guarded)
		p := policyOf(t, "/some.Service/Method", def)
		require.True(t, p.guarded)
		require.False(t, p.linked)
		require.Nil(t, p.output)
		require.Equal(t, time.Second, p.wait)
		require.Equal(t, "/some.Service/Method", p.method)
	})
	t.Run("the_default_is_not_for_streaming_methods", func(t *testing.T) {
		p := policyOf(t, testpb.TestService_Watch_FullMethodName, WithDefaultPolicy(policyText(t, `key: REQUIRED`)))
		require.False(t, p.guarded)
		require.Equal(t, oncerpcv1.MethodPolicy_OPTIONAL, p.key)
	})
	t.Run("a_streaming_method_may_say_ignored", func(t *testing.T) {
		const watch = testpb.TestService_GuardedWatch_FullMethodName
		require.Equal(t, oncerpcv1.MethodPolicy_IGNORED, policyOf(t, watch, WithPolicy(watch, policyText(t, `key: IGNORED`))).key)
	})
	t.Run("options_are_copied", func(t *testing.T) {
		given, def := policyText(t, `retention: {seconds: 1}`), policyText(t, `wait: {seconds: 1}`)
		opts := []Option{WithPolicy(method, given), WithDefaultPolicy(def)}
		given.Retention.Seconds, def.Wait.Seconds = 9, 9
		p := policyOf(t, method, opts...)
		require.Equal(t, time.Second, p.retention)
		require.Equal(t, time.Second, p.wait)
	})
	t.Run("no_default_policy_may_be_given", func(t *testing.T) {
		require.False(t, policyOf(t, testpb.TestService_Plain_FullMethodName, WithDefaultPolicy(nil)).guarded)
	})
}

func TestPolicyKeyField(t *testing.T) {
	const fielded, plain = testpb.TestService_Fielded_FullMethodName, testpb.TestService_Plain_FullMethodName
	t.Run("an_option_names_it", func(t *testing.T) {
		p := policyOf(t, plain, WithPolicy(plain, policyText(t, `key_field: "text"`)))
		require.Equal(t, "a", p.requestKey(&testpb.Request{Text: "a"}))
	})
	t.Run("an_option_goes_before_the_schema", func(t *testing.T) {
		p := policyOf(t, fielded, WithPolicy(fielded, policyText(t, `key_field: "text"`)))
		require.Equal(t, "a", p.requestKey(&testpb.FieldedRequest{Text: "a", RequestId: "b"}))
	})
	t.Run("a_member_of_a_oneof_can_carry_it", func(t *testing.T) {
		p := policyOf(t, plain, WithPolicy(plain, policyText(t, `key_field: "left"`)))
		require.Equal(t, "a", p.requestKey(&testpb.Request{Choice: &testpb.Request_Left{Left: "a"}}))
		require.Empty(t, p.requestKey(&testpb.Request{Choice: &testpb.Request_Right{}}))
	})
	t.Run("a_default_applies_where_the_field_exists", func(t *testing.T) {
		def := WithDefaultPolicy(policyText(t, `key_field: "text" ignore_fields: "inner.text"`))
		require.Equal(t, "a", policyOf(t, plain, def).requestKey(&testpb.Request{Text: "a"}))
		require.Equal(t, "b", policyOf(t, fielded, def).requestKey(&testpb.FieldedRequest{Text: "a", RequestId: "b"}))
		require.Empty(t, policyOf(t, plain, WithDefaultPolicy(policyText(t, `key_field: "number"`))).requestKey(&testpb.Request{Number: 1}))
		require.Equal(t, "a", policyOf(t, "/some.Service/Method", def).requestKey(&testpb.Request{Text: "a"}))
	})
}

func TestPolicyThatMakesNoSense(t *testing.T) {
	const plain, fielded, watch = testpb.TestService_Plain_FullMethodName, testpb.TestService_Fielded_FullMethodName, testpb.TestService_Watch_FullMethodName
	for name, tt := range map[string]struct{ method, policy, wrong string }{
		"negative_retention":                 {plain, `retention: {seconds: -1}`, "retention: -1s is negative"},
		"zero_retention":                     {plain, `retention: {}`, "retention: it must be more than 0 s"},
		"zero_error_retention":               {plain, `error_retention: {}`, "error_retention: it must be more than 0 s"},
		"zero_timeout":                       {plain, `timeout: {}`, "timeout: it must be more than 0 s"},
		"zero_lease":                         {plain, `lease: {}`, "lease: it must be more than 0 s"},
		"negative_wait":                      {plain, `wait: {nanos: -1}`, "wait: -1ns is negative"},
		"invalid_duration":                   {plain, `wait: {seconds: 1 nanos: -1}`, "wait: "},
		"nanoseconds_out_of_range":           {plain, `timeout: {nanos: 2000000000}`, "timeout: "},
		"more_than_a_hundred_years":          {plain, `retention: {seconds: 9000000000}`, "retention: it must be at most 100 years"},
		"no_attempts":                        {plain, `max_attempts: 0`, "max_attempts: 0 is less than 1"},
		"unknown_key":                        {plain, `key: 77`, "key: 77"},
		"unknown_on_crash":                   {plain, `on_crash: 77`, "on_crash: 77"},
		"rule_for_ok":                        {plain, `outcomes: {class: FINAL}`, "outcomes: a rule needs a code other than OK"},
		"rule_for_an_unknown_code":           {plain, `outcomes: {code: 17 class: FINAL}`, "outcomes: 17 is not a status code"},
		"rule_for_a_negative_code":           {plain, `outcomes: {code: -1 class: FINAL}`, "outcomes: -1 is not a status code"},
		"rule_without_a_class":               {plain, `outcomes: {code: ABORTED}`, "outcomes: the rule for Aborted needs the class"},
		"rule_with_an_unknown_class":         {plain, `outcomes: {code: ABORTED class: 9}`, "outcomes: the rule for Aborted needs the class"},
		"two_rules_for_one_code":             {plain, `outcomes: {code: ABORTED class: FINAL} outcomes: {code: ABORTED class: FINAL}`, "outcomes: there are two rules for Aborted"},
		"key_field_that_does_not_exist":      {plain, `key_field: "txt"`, `key_field: oncerpc.internal.testpb.Request has no field "txt"`},
		"empty_key_field":                    {plain, `key_field: ""`, "key_field: "},
		"key_field_that_is_no_string":        {plain, `key_field: "number"`, "key_field: oncerpc.internal.testpb.Request.number is not a singular string"},
		"key_field_that_is_bytes":            {plain, `key_field: "blob"`, "is not a singular string"},
		"key_field_that_is_nested":           {plain, `key_field: "child.text"`, "has no field"},
		"ignored_field_that_does_not_exist":  {plain, `ignore_fields: "txt"`, `ignore_fields: "txt": oncerpc.internal.testpb.Request has no field "txt"`},
		"ignored_path_through_a_scalar":      {plain, `ignore_fields: "text.size"`, "is not a message"},
		"ignored_path_through_a_map":         {plain, `ignore_fields: "named.value.text"`, "is a map"},
		"empty_ignored_path":                 {plain, `ignore_fields: ""`, `has no field ""`},
		"ignored_path_that_ends_in_a_dot":    {plain, `ignore_fields: "child."`, `has no field ""`},
		"method_that_is_not_linked":          {"/oncerpc.internal.testpb.TestService/Plane", ``, "no such method is linked"},
		"method_without_a_slash":             {strings.TrimPrefix(plain, "/"), ``, "no such method is linked"},
		"method_with_a_dot_for_its_slash":    {"/oncerpc.internal.testpb/TestService.Plain", ``, "no such method is linked"},
		"message_in_place_of_a_method":       {"/oncerpc.internal.testpb.FieldedRequest/Inner", ``, "no such method is linked"},
		"streaming_method":                   {watch, `key: REQUIRED`, "key: a streaming method cannot have keys"},
		"streaming_method_without_a_key":     {watch, `wait: {seconds: 1}`, "key: a streaming method cannot have keys"},
		"ignored_beside_a_field_of_the_name": {fielded, `ignore_fields: "inner.txt"`, "FieldedRequest.Inner has no field"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newPolicies(common(WithPolicy(tt.method, policyText(t, tt.policy))))
			require.ErrorContains(t, err, "oncerpc: policy of "+tt.method+": ")
			require.ErrorContains(t, err, tt.wrong)
			if strings.HasPrefix(tt.wrong, "ignore") || strings.HasPrefix(tt.wrong, "key_field") || tt.method != plain || strings.Contains(tt.policy, "_field") {
				return // a default does not name a method and its fields
			}
			_, err = newPolicies(common(WithDefaultPolicy(policyText(t, tt.policy))))
			require.ErrorContains(t, err, "oncerpc: default policy: ")
			require.ErrorContains(t, err, tt.wrong)
		})
	}
	t.Run("nil", func(t *testing.T) {
		_, err := newPolicies(common(WithPolicy(plain, nil)))
		require.ErrorContains(t, err, "policy of "+plain)
	})
	t.Run("in_the_schema_it_is_the_method's_error", func(t *testing.T) {
		all, err := newPolicies(commonOptions{})
		require.NoError(t, err)
		for range 2 {
			_, err = all.of(testpb.TestService_Nonsense_FullMethodName)
			require.EqualError(t, err, "oncerpc: policy of "+testpb.TestService_Nonsense_FullMethodName+": retention: -1s is negative")
			_, err = all.of(testpb.TestService_GuardedWatch_FullMethodName)
			require.ErrorContains(t, err, "key: a streaming method")
		}
	})
	t.Run("durations_at_the_edge_are_fine", func(t *testing.T) {
		policyOf(t, plain, WithPolicy(plain, &oncerpcv1.MethodPolicy{Retention: durationpb.New(longest)}))
		_, err := newPolicies(common(WithPolicy(plain, &oncerpcv1.MethodPolicy{Retention: &durationpb.Duration{Seconds: math.MaxInt64}})))
		require.ErrorContains(t, err, "retention")
	})
}

// Descriptors that a program builds at run time hold our options in other shapes than generated ones.
func TestPolicyOfRunTimeSchema(t *testing.T) {
	const text = `
		name: "NAME.proto" package: "NAME" syntax: "proto3" dependency: "oncerpc/v1/options.proto"
		message_type {
			name: "Request"
			field { name: "id" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL json_name: "id" options { [oncerpc.v1.field] { key: true } } }
			field { name: "at" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL json_name: "at" options { [oncerpc.v1.field] { ignore: true } } }
			field { name: "n" number: 3 type: TYPE_INT64 label: LABEL_OPTIONAL json_name: "n" }
		}
		message_type {
			name: "TwoKeys"
			field { name: "a" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL json_name: "a" options { [oncerpc.v1.field] { key: true } } }
			field { name: "b" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL json_name: "b" options { [oncerpc.v1.field] { key: true } } }
		}
		message_type {
			name: "WrongKey"
			field { name: "a" number: 1 type: TYPE_STRING label: LABEL_REPEATED json_name: "a" options { [oncerpc.v1.field] { key: true } } }
		}
		service {
			name: "S"
			method { name: "M" input_type: ".NAME.Request" output_type: ".NAME.Request" options { [oncerpc.v1.method] { key: REQUIRED retention { seconds: 3 } } } }
			method { name: "Fielded" input_type: ".NAME.Request" output_type: ".NAME.Request" }
			method { name: "Named" input_type: ".NAME.Request" output_type: ".NAME.Request" options { [oncerpc.v1.method] { key_field: "id" } } }
			method { name: "Read" input_type: ".NAME.Request" output_type: ".NAME.Request" options { idempotency_level: NO_SIDE_EFFECTS } }
			method { name: "ReadByPolicy" input_type: ".NAME.Request" output_type: ".NAME.Request" options { idempotency_level: IDEMPOTENT [oncerpc.v1.method] { key: REQUIRED } } }
			method { name: "TwoKeys" input_type: ".NAME.TwoKeys" output_type: ".NAME.Request" }
			method { name: "OneOfTwoKeys" input_type: ".NAME.TwoKeys" output_type: ".NAME.Request" options { [oncerpc.v1.method] { key_field: "a" } } }
			method { name: "WrongKey" input_type: ".NAME.WrongKey" output_type: ".NAME.Request" }
		}`
	named := func(name string) *descriptorpb.FileDescriptorProto {
		return parseSchema(t, strings.ReplaceAll(text, "NAME", name))
	}
	shapes := map[string]*descriptorpb.FileDescriptorProto{
		"generated": named("generated"),
		"unknown":   reparse(t, named("unknown"), nil),
		"dynamic":   reparse(t, named("dynamic"), dynamicOptions(t)),
	}
	for shape, file := range shapes {
		fd := build(t, file)
		link(t, fd)
		method := func(name string) string { return fmt.Sprintf("/%s.S/%s", shape, name) }

		t.Run(shape+"_method_options_are_read", func(t *testing.T) {
			p := policyOf(t, method("M"))
			require.True(t, p.guarded)
			require.Equal(t, oncerpcv1.MethodPolicy_REQUIRED, p.key)
			require.Equal(t, 3*time.Second, p.retention)
			require.Nil(t, p.output) // no Go type of it is linked
		})
		t.Run(shape+"_field_options_are_read", func(t *testing.T) {
			p := policyOf(t, method("Fielded"))
			require.True(t, p.guarded)
			m := dynamicpb.NewMessage(fd.Messages().ByName("Request"))
			m.Set(m.Descriptor().Fields().ByName("id"), protoreflect.ValueOfString("key"))
			require.Equal(t, "key", p.requestKey(m))
			require.Equal(t, "key", policyOf(t, method("Named")).requestKey(m))
			before := fingerprintOf(t, p, m)
			m.Set(m.Descriptor().Fields().ByName("at"), protoreflect.ValueOfInt64(7))
			require.Equal(t, before, fingerprintOf(t, p, m))
			m.Set(m.Descriptor().Fields().ByName("n"), protoreflect.ValueOfInt64(7))
			require.NotEqual(t, before, fingerprintOf(t, p, m))
		})
		t.Run(shape+"_schema_goes_before_the_idempotency_level", func(t *testing.T) {
			require.True(t, policyOf(t, method("Read")).idempotent)
			require.False(t, policyOf(t, method("Read")).guarded)
			require.True(t, policyOf(t, method("ReadByPolicy")).guarded)
			require.False(t, policyOf(t, method("ReadByPolicy")).idempotent)
		})
		t.Run(shape+"_key_fields_are_checked", func(t *testing.T) {
			all, err := newPolicies(commonOptions{})
			require.NoError(t, err)
			_, err = all.of(method("TwoKeys"))
			require.ErrorContains(t, err, fmt.Sprintf("policy of %s: key field: %s.TwoKeys.a and %s.TwoKeys.b are both named", method("TwoKeys"), shape, shape))
			_, err = all.of(method("OneOfTwoKeys"))
			require.ErrorContains(t, err, "are both named")
			_, err = all.of(method("WrongKey"))
			require.ErrorContains(t, err, fmt.Sprintf("key field: %s.WrongKey.a is not a singular string", shape))
			require.NotNil(t, policyOf(t, method("TwoKeys"), WithPolicy(method("TwoKeys"), policyText(t, `key_field: "b"`))).plan.key)
		})
	}
	t.Run("bytes_under_our_number_that_are_not_ours_are_an_error", func(t *testing.T) {
		file := reparse(t, named("foreign"), nil)
		file.Service[0].Method[0].Options.ProtoReflect().SetUnknown([]byte{0xe2, 0x97, 0x19, 1, 0xff}) // field 51580: one bad byte
		link(t, build(t, file))
		all, err := newPolicies(commonOptions{})
		require.NoError(t, err)
		_, err = all.of("/foreign.S/M")
		require.ErrorContains(t, err, "option (oncerpc.v1.method), number 51580")
	})
}

// reparse reads a file again as programs do that resolve options by types, nil for none.
func reparse(t *testing.T, file *descriptorpb.FileDescriptorProto, types *dynamicpb.Types) *descriptorpb.FileDescriptorProto {
	t.Helper()
	raw, err := proto.Marshal(file)
	require.NoError(t, err)
	again := &descriptorpb.FileDescriptorProto{}
	options := proto.UnmarshalOptions{Resolver: dynamicpb.NewTypes(nil)}
	if types != nil {
		options.Resolver = types
	}
	require.NoError(t, options.Unmarshal(raw, again))
	require.Equal(t, types == nil, len(again.Service[0].Method[0].Options.ProtoReflect().GetUnknown()) > 0)
	return again
}

// dynamicOptions is a resolver that knows our options as dynamic messages only.
func dynamicOptions(t *testing.T) *dynamicpb.Types {
	t.Helper()
	files, err := protodesc.NewFiles(&descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{
		protodesc.ToFileDescriptorProto(descriptorpb.File_google_protobuf_descriptor_proto),
		protodesc.ToFileDescriptorProto(durationpb.File_google_protobuf_duration_proto),
		protodesc.ToFileDescriptorProto(oncerpcv1.File_oncerpc_v1_options_proto),
	}})
	require.NoError(t, err)
	return dynamicpb.NewTypes(files)
}

func TestPoliciesAreCached(t *testing.T) {
	all, err := newPolicies(commonOptions{})
	require.NoError(t, err)
	t.Run("a_linked_method_is_resolved_once", func(t *testing.T) {
		var wg sync.WaitGroup
		got := make([]*policy, 8)
		for i := range got {
			wg.Go(func() { got[i], _ = all.of(testpb.TestService_Fielded_FullMethodName) })
		}
		wg.Wait()
		for _, p := range got {
			require.NotNil(t, p)
			require.Same(t, got[0], p)
		}
	})
	t.Run("names_that_are_not_linked_are_not_kept", func(t *testing.T) {
		for i := range 100 {
			_, err := all.of(fmt.Sprintf("/made.up/Name%d", i))
			require.NoError(t, err)
		}
		all.linked.Range(func(method, _ any) bool {
			require.NotContains(t, method, "made.up")
			return true
		})
	})
	t.Run("descriptors_of_no_end_are_not_kept", func(t *testing.T) {
		p, err := all.of("/made.up/Name")
		require.NoError(t, err)
		file := parseSchema(t, `name: "many.proto" package: "many" syntax: "proto3" message_type { name: "M" }`)
		for range maxPlans + 10 {
			_, err := p.planOf(build(t, file).Messages().Get(0))
			require.NoError(t, err)
		}
		require.LessOrEqual(t, len(all.plans.requests)+len(all.plans.messages), maxPlans)
	})
}

func BenchmarkPolicyOf(b *testing.B) {
	all, err := newPolicies(commonOptions{})
	require.NoError(b, err)
	for name, method := range map[string]string{"linked": testpb.TestService_Fielded_FullMethodName, "not_linked": "/made.up/Name"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := all.of(method); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
