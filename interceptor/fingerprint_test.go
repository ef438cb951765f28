package interceptor

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
)

var updateFingerprints = flag.Bool("update-fingerprints", false, "write testdata/fingerprints.golden anew")

func fingerprintOf(t testing.TB, p *policy, m proto.Message) string {
	t.Helper()
	fp, err := p.fingerprint(nil, nil, m)
	require.NoError(t, err)
	return hex.EncodeToString(fp)
}

// fingerprintCases are pinned for ever: a fingerprint that changes refuses retries over the deploy that changes it.
func fingerprintCases() []struct {
	name, method string
	md           map[string][]string
	names        []string
	req          proto.Message
} {
	const plain, fielded = testpb.TestService_Plain_FullMethodName, testpb.TestService_Fielded_FullMethodName
	unknown := &testpb.Request{Text: "a", Number: 1}
	unknown.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 20, protowire.VarintType), 7))
	// The left before the number: an order that messages do not have outside of an Any.
	opaque := &anypb.Any{TypeUrl: "type.googleapis.com/oncerpc.internal.testpb.Request", Value: []byte("\x32\x01l\x10\x01")}
	tenant := map[string][]string{"x-tenant": {"acme"}, "x-role": {"a", "b"}}
	return []struct {
		name, method string
		md           map[string][]string
		names        []string
		req          proto.Message
	}{
		{"empty", plain, nil, nil, &testpb.Request{}},
		{"another_method", fielded, nil, nil, &testpb.Request{}},
		{"not_linked", "/some.Service/Method", nil, nil, &testpb.Request{Text: "a"}},
		{"scalars", plain, nil, nil, &testpb.Request{Text: "a", Number: -1, Blob: []byte{0, 1}, Packed: []int32{1, -2, 300}}},
		{"oneof_before_larger_numbers", plain, nil, nil, &testpb.Request{Choice: &testpb.Request_Left{Left: "l"}, Blob: []byte("b")}},
		{"map_of_strings", plain, nil, nil, &testpb.Request{Labels: map[string]string{"b": "2", "a": "1", "": ""}}},
		{"map_of_messages", plain, nil, nil, &testpb.Request{Named: map[string]*testpb.Request{"x": {Choice: &testpb.Request_Left{Left: "l"}, Blob: []byte("b")}}}},
		{"nested", plain, nil, nil, &testpb.Request{Child: &testpb.Request{Child: &testpb.Request{Text: "a"}}, Children: []*testpb.Request{{}, {Number: 1}}}},
		{"unknown_field", plain, nil, nil, unknown},
		{"any_is_opaque", plain, nil, nil, &testpb.Request{Any: opaque}},
		{"key_and_ignored_fields", fielded, nil, nil, &testpb.FieldedRequest{
			Text: "a", RequestId: goodKey, SentAt: timestamppb.New(time.Unix(1, 0)),
			Inner:  &testpb.FieldedRequest_Inner{Text: "b", Trace: "t"},
			Inners: []*testpb.FieldedRequest_Inner{{Trace: "t"}, {Text: "c", Trace: "t"}},
		}},
		{"metadata", plain, tenant, []string{"x-tenant", "x-role", "x-absent"}, &testpb.Request{Text: "a"}},
	}
}

func TestFingerprintVectors(t *testing.T) {
	const golden = "testdata/fingerprints.golden"
	all, err := newPolicies(commonOptions{})
	require.NoError(t, err)
	var got strings.Builder
	for _, tt := range fingerprintCases() {
		p, err := all.of(tt.method)
		require.NoError(t, err)
		pl, err := p.planOf(tt.req.ProtoReflect().Descriptor())
		require.NoError(t, err)
		body, err := canonicalBytes(pl, tt.req)
		require.NoError(t, err)
		fp, err := p.fingerprint(func(name string) []string { return tt.md[name] }, tt.names, tt.req)
		require.NoError(t, err)
		require.Equal(t, "fp1", fingerprintAlgorithm(fp))
		fmt.Fprintf(&got, "%s\n  canonical   %x\n  fingerprint %x\n", tt.name, body, fp)
	}
	if *updateFingerprints {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(golden, []byte(got.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got.String())
}

// The definition, written down once more without the code under test.
func TestFingerprintDefinition(t *testing.T) {
	prefixed := func(s string) string { return string(binary.BigEndian.AppendUint64(nil, uint64(len(s)))) + s }
	count := func(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }
	const method = testpb.TestService_Plain_FullMethodName
	p := policyOf(t, method)

	t.Run("without_metadata", func(t *testing.T) {
		sum := sha256.Sum256([]byte("fp1" + prefixed(method) + count(0) + "\x0a\x01a"))
		require.Equal(t, hex.EncodeToString([]byte("fp1\x00"+string(sum[:]))), fingerprintOf(t, p, &testpb.Request{Text: "a"}))
	})
	t.Run("with_metadata", func(t *testing.T) {
		sum := sha256.Sum256([]byte("fp1" + prefixed(method) + count(2) +
			prefixed("x-a") + count(0) + prefixed("x-b") + count(2) + prefixed("1") + prefixed("") + "\x0a\x01a"))
		fp, err := p.fingerprint(func(name string) []string { return map[string][]string{"x-b": {"1", ""}}[name] },
			[]string{"X-B", "x-a", "x-b"}, &testpb.Request{Text: "a"})
		require.NoError(t, err)
		require.Equal(t, "fp1\x00"+string(sum[:]), string(fp))
	})
	t.Run("literals", func(t *testing.T) {
		require.Equal(t, "66703100eebd6d3978040ba0500469cdee010910e395fd192c7b49977541514ff6f8131f", fingerprintOf(t, p, &testpb.Request{}))
		require.Equal(t, "637573746f6d003400fb5eedcdda4f917b18c7df79a6716b4f5dc7b19ba68e2e141cefe6f0e2f4", hex.EncodeToString(customFingerprint("/a.B/C", []byte("body"))))
	})
	t.Run("custom", func(t *testing.T) {
		sum := sha256.Sum256([]byte(prefixed("/a.B/C") + "body"))
		require.Equal(t, "custom\x00"+string(sum[:]), string(customFingerprint("/a.B/C", []byte("body"))))
		require.Equal(t, "custom", fingerprintAlgorithm(customFingerprint("", nil)))
	})
	t.Run("a_fingerprint_without_a_name_has_no_algorithm", func(t *testing.T) {
		require.Empty(t, fingerprintAlgorithm(nil))
		require.Empty(t, fingerprintAlgorithm([]byte("fp1")))
		require.Empty(t, fingerprintAlgorithm([]byte{0, 1}))
	})
}

func TestFingerprint(t *testing.T) {
	p := policyOf(t, testpb.TestService_Plain_FullMethodName)
	t.Run("the_method_is_part", func(t *testing.T) {
		other := policyOf(t, testpb.TestService_Required_FullMethodName)
		require.NotEqual(t, fingerprintOf(t, p, &testpb.Request{}), fingerprintOf(t, other, &testpb.Request{}))
	})
	t.Run("metadata_is_part_in_any_order_of_names", func(t *testing.T) {
		md := func(values ...string) func(string) []string {
			return func(name string) []string {
				if name == "x-a" {
					return values
				}
				return nil
			}
		}
		of := func(md func(string) []string, names ...string) string {
			fp, err := p.fingerprint(md, names, &testpb.Request{})
			require.NoError(t, err)
			return string(fp)
		}
		names := []string{"x-b", "X-A"}
		require.Equal(t, of(md("1", "2"), names...), of(md("1", "2"), "x-a", "x-b"))
		require.Equal(t, []string{"x-b", "X-A"}, names)
		require.NotEqual(t, of(md("1", "2"), "x-a"), of(md("2", "1"), "x-a"))
		require.NotEqual(t, of(md("12"), "x-a"), of(md("1", "2"), "x-a"))
		require.NotEqual(t, of(md(), "x-a"), of(md(""), "x-a"))
		require.NotEqual(t, of(md(), "x-a"), of(md()))
	})
	t.Run("fifty_encodings_of_a_map_have_one", func(t *testing.T) {
		m := &testpb.Request{Labels: map[string]string{}, Named: map[string]*testpb.Request{}}
		for i := range 20 {
			m.Labels[fmt.Sprint(i)] = "v"
			m.Named[fmt.Sprint(i)] = &testpb.Request{Labels: map[string]string{"a": "1", "b": "2", "c": "3"}}
		}
		want := fingerprintOf(t, p, m)
		for range 50 {
			raw, err := proto.Marshal(m)
			require.NoError(t, err)
			again := &testpb.Request{}
			require.NoError(t, proto.Unmarshal(raw, again))
			require.Equal(t, want, fingerprintOf(t, p, again))
		}
	})
	t.Run("a_nil_request_is_an_empty_one", func(t *testing.T) {
		require.Equal(t, fingerprintOf(t, p, &testpb.Request{}), fingerprintOf(t, p, (*testpb.Request)(nil)))
		_, err := p.fingerprint(nil, nil, nil)
		require.Error(t, err)
	})
	t.Run("text_that_is_not_utf8_is_an_error", func(t *testing.T) {
		_, err := p.fingerprint(nil, nil, &testpb.Request{Text: "\xff"})
		require.Error(t, err)
	})
}

func TestFingerprintOfRandomRequests(t *testing.T) {
	p := policyOf(t, testpb.TestService_Plain_FullMethodName)
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := &testpb.Request{}
		fill(r, m.ProtoReflect(), 4)
		want := fingerprintOf(t, p, m)

		require.Equal(t, want, fingerprintOf(t, p, proto.CloneOf(m)), "a copy, seed %d", seed)

		raw, err := proto.Marshal(m)
		require.NoError(t, err)
		shuffled := &testpb.Request{}
		require.NoError(t, proto.Unmarshal(shuffle(t, r, raw), shuffled))
		require.True(t, proto.Equal(m, shuffled))
		require.Equal(t, want, fingerprintOf(t, p, shuffled), "another order on the wire, seed %d", seed)

		changed := proto.CloneOf(m)
		for proto.Equal(m, changed) {
			change(r, changed.ProtoReflect())
		}
		require.NotEqual(t, want, fingerprintOf(t, p, changed), "something changed, seed %d", seed)
	}
}

func TestFingerprintIgnores(t *testing.T) {
	const plain, fielded = testpb.TestService_Plain_FullMethodName, testpb.TestService_Fielded_FullMethodName
	inner := func(text, trace string) *testpb.FieldedRequest_Inner {
		return &testpb.FieldedRequest_Inner{Text: text, Trace: trace}
	}
	t.Run("the_key_field_and_marked_fields_at_any_depth", func(t *testing.T) {
		p := policyOf(t, fielded)
		want := fingerprintOf(t, p, &testpb.FieldedRequest{Text: "a", Inner: inner("b", ""), Inners: []*testpb.FieldedRequest_Inner{inner("c", ""), inner("", "")}})
		require.Equal(t, want, fingerprintOf(t, p, &testpb.FieldedRequest{
			Text: "a", RequestId: "r", SentAt: timestamppb.Now(),
			Inner: inner("b", "1"), Inners: []*testpb.FieldedRequest_Inner{inner("c", "2"), inner("", strings.Repeat("3", 300))},
		}))
		require.NotEqual(t, want, fingerprintOf(t, p, &testpb.FieldedRequest{Text: "a", Inner: inner("b", ""), Inners: []*testpb.FieldedRequest_Inner{inner("c", "")}}))
	})
	t.Run("paths_lead_through_repeated_messages_oneofs_and_recursion", func(t *testing.T) {
		p := policyOf(t, plain, WithPolicy(plain, policyText(t, `ignore_fields: "children.text" ignore_fields: "right.child.number" ignore_fields: "labels" ignore_fields: "left"`)))
		request := func(ignored string, n int64, kept string) *testpb.Request {
			return &testpb.Request{
				Text:     kept,
				Labels:   map[string]string{"a": ignored},
				Children: []*testpb.Request{{Text: ignored, Child: &testpb.Request{Text: kept}}, {Text: ignored, Number: 1}},
				Choice:   &testpb.Request_Right{Right: &testpb.Request{Number: 1, Child: &testpb.Request{Number: n}}},
			}
		}
		require.Equal(t, fingerprintOf(t, p, request("a", 1, "k")), fingerprintOf(t, p, request("b", 2, "k")))
		require.NotEqual(t, fingerprintOf(t, p, request("a", 1, "k")), fingerprintOf(t, p, request("a", 1, "l")))
		require.Equal(t, fingerprintOf(t, p, &testpb.Request{}), fingerprintOf(t, p, &testpb.Request{Choice: &testpb.Request_Left{Left: "x"}}))
	})
	t.Run("a_path_says_nothing_of_the_same_message_elsewhere", func(t *testing.T) {
		p := policyOf(t, plain, WithPolicy(plain, policyText(t, `ignore_fields: "child.text"`)))
		require.Equal(t, fingerprintOf(t, p, &testpb.Request{Child: &testpb.Request{}}), fingerprintOf(t, p, &testpb.Request{Child: &testpb.Request{Text: "a"}}))
		deeper := func(text string) *testpb.Request {
			return &testpb.Request{Child: &testpb.Request{Child: &testpb.Request{Text: text}}}
		}
		require.NotEqual(t, fingerprintOf(t, p, deeper("")), fingerprintOf(t, p, deeper("a")))
	})
	t.Run("a_key_field_of_a_nested_request_is_no_key_field", func(t *testing.T) {
		p := policyOf(t, plain, WithPolicy(plain, policyText(t, `key_field: "text"`)))
		require.Equal(t, fingerprintOf(t, p, &testpb.Request{}), fingerprintOf(t, p, &testpb.Request{Text: "a"}))
		require.NotEqual(t, fingerprintOf(t, p, &testpb.Request{Child: &testpb.Request{}}), fingerprintOf(t, p, &testpb.Request{Child: &testpb.Request{Text: "a"}}))
	})
	t.Run("marked_fields_in_map_values", func(t *testing.T) {
		fd := schema(t, `
			name: "inmap.proto" package: "inmap" syntax: "proto3" dependency: "oncerpc/v1/options.proto"
			message_type {
				name: "M"
				field { name: "m" number: 1 type: TYPE_MESSAGE type_name: ".inmap.M.MEntry" label: LABEL_REPEATED json_name: "m" }
				field { name: "trace" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL json_name: "trace" options { [oncerpc.v1.field] { ignore: true } } }
				field { name: "text" number: 3 type: TYPE_STRING label: LABEL_OPTIONAL json_name: "text" }
				nested_type {
					name: "MEntry" options { map_entry: true }
					field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL json_name: "key" }
					field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".inmap.M" label: LABEL_OPTIONAL json_name: "value" }
				}
			}`)
		p := policyOf(t, "/some.Service/Method")
		of := func(trace, text string) string {
			value := protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), trace)
			value = protowire.AppendString(protowire.AppendTag(value, 3, protowire.BytesType), text)
			entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "k")
			entry = protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), value)
			m := dynamicpb.NewMessage(fd.Messages().Get(0))
			require.NoError(t, proto.Unmarshal(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), entry), m))
			return fingerprintOf(t, p, m)
		}
		require.Equal(t, of("a", "x"), of("b", "x"))
		require.NotEqual(t, of("a", "x"), of("a", "y"))
	})
}

// A message with groups and extensions, as proto2 has them.
func TestFingerprintOfProto2(t *testing.T) {
	fd := schema(t, `
		name: "legacy.proto" package: "legacy" syntax: "proto2" dependency: "oncerpc/v1/options.proto"
		message_type {
			name: "M"
			field { name: "b" number: 9 type: TYPE_STRING label: LABEL_OPTIONAL json_name: "b" }
			field { name: "must" number: 10 type: TYPE_STRING label: LABEL_REQUIRED json_name: "must" }
			field { name: "g" number: 3 type: TYPE_GROUP type_name: ".legacy.M.G" label: LABEL_REPEATED json_name: "g" }
			extension_range { start: 100 end: 200 }
			nested_type {
				name: "G"
				field { name: "m" number: 7 type: TYPE_MESSAGE type_name: ".legacy.M" label: LABEL_OPTIONAL json_name: "m" }
				field { name: "trace" number: 5 type: TYPE_STRING label: LABEL_OPTIONAL json_name: "trace" options { [oncerpc.v1.field] { ignore: true } } }
				field { name: "g" number: 2 type: TYPE_GROUP type_name: ".legacy.M.G.G" label: LABEL_OPTIONAL json_name: "g" }
				nested_type { name: "G" field { name: "trace" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL json_name: "trace" options { [oncerpc.v1.field] { ignore: true } } } }
			}
		}
		extension { name: "ext" number: 100 type: TYPE_MESSAGE type_name: ".legacy.M.G" label: LABEL_OPTIONAL json_name: "ext" extendee: ".legacy.M" }
		extension { name: "trace" number: 101 type: TYPE_STRING label: LABEL_OPTIONAL json_name: "trace" extendee: ".legacy.M" options { [oncerpc.v1.field] { ignore: true } } }`)
	for i := range fd.Extensions().Len() {
		x := dynamicpb.NewExtensionType(fd.Extensions().Get(i))
		if _, err := protoregistry.GlobalTypes.FindExtensionByName(x.TypeDescriptor().FullName()); err != nil {
			require.NoError(t, protoregistry.GlobalTypes.RegisterExtension(x))
		}
	}
	p := policyOf(t, "/some.Service/Method")
	text := func(b []byte, num protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
	}
	group := func(b []byte, num protowire.Number, inner []byte) []byte {
		b = append(protowire.AppendTag(b, num, protowire.StartGroupType), inner...)
		return protowire.AppendTag(b, num, protowire.EndGroupType)
	}
	canonicalOf := func(raw []byte) []byte {
		m := dynamicpb.NewMessage(fd.Messages().Get(0))
		require.NoError(t, proto.UnmarshalOptions{AllowPartial: true}.Unmarshal(raw, m))
		require.Empty(t, m.GetUnknown())
		pl, err := p.planOf(m.Descriptor())
		require.NoError(t, err)
		body, err := canonicalBytes(pl, m)
		require.NoError(t, err)
		return body
	}
	t.Run("groups_are_looked_into", func(t *testing.T) {
		inM := text(nil, 9, "b")
		with := group(group(nil, 3, text(group(text(nil, 5, "t"), 2, text(nil, 1, "t")), 7, string(inM))), 3, text(nil, 5, "t"))
		without := group(group(nil, 3, text(group(nil, 2, nil), 7, string(inM))), 3, nil)
		require.Equal(t, without, canonicalOf(with))
	})
	t.Run("extensions_are_looked_into", func(t *testing.T) {
		require.Equal(t, text(nil, 100, string(group(nil, 2, nil))),
			canonicalOf(text(text(nil, 101, "t"), 100, string(group(text(nil, 5, "t"), 2, text(nil, 1, "t"))))))
	})
	t.Run("a_known_extension_and_an_unknown_one_have_one_place", func(t *testing.T) {
		require.Equal(t, text(text(nil, 9, "b"), 100, ""), canonicalOf(text(text(nil, 100, ""), 9, "b")))
	})
}

// During a rolling deploy servers of two schema versions see retries of one request.
func TestFingerprintOverSchemaVersions(t *testing.T) {
	const field = `field { name: "%[1]s" number: %[2]d type: TYPE_%[3]s label: LABEL_%[4]s json_name: "%[1]s" %[5]s }`
	f := func(name string, number int, kind, label string, more ...string) string {
		return fmt.Sprintf(field, name, number, kind, label, strings.Join(more, " "))
	}
	const mapEntry = `nested_type { name: "CountsEntry" options { map_entry: true }
		field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL json_name: "key" }
		field { name: "value" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL json_name: "value" } }`
	file := func(parts ...string) protoreflect.MessageDescriptor {
		return schema(t, `name: "skew.proto" package: "skew" syntax: "proto3" `+strings.Join(parts, "\n")).Messages().ByName("M")
	}
	old := file(
		`message_type { name: "M"`,
		f("a", 1, "STRING", "OPTIONAL"),
		f("subs", 8, "MESSAGE", "REPEATED", `type_name: ".skew.Sub"`),
		f("blob", 12, "BYTES", "OPTIONAL"),
		`}`,
		`message_type { name: "Sub"`, f("z", 5, "INT64", "OPTIONAL"), `}`,
	)
	recent := file(
		`message_type { name: "M"`,
		f("a", 1, "STRING", "OPTIONAL"),
		f("scalar", 2, "SINT64", "OPTIONAL"),
		f("sub", 3, "MESSAGE", "OPTIONAL", `type_name: ".skew.Sub"`),
		f("counts", 4, "MESSAGE", "REPEATED", `type_name: ".skew.M.CountsEntry"`),
		f("packed", 5, "INT32", "REPEATED"),
		f("left", 6, "STRING", "OPTIONAL", `oneof_index: 0`),
		f("right", 7, "MESSAGE", "OPTIONAL", `type_name: ".skew.Sub" oneof_index: 0`),
		f("subs", 8, "MESSAGE", "REPEATED", `type_name: ".skew.Sub"`),
		f("texts", 9, "STRING", "REPEATED"),
		f("fixed", 10, "FIXED32", "OPTIONAL"),
		f("blob", 12, "BYTES", "OPTIONAL"),
		f("late", 20, "UINT64", "OPTIONAL"),
		`oneof_decl { name: "choice" }`, mapEntry, `}`,
		`message_type { name: "Sub"`,
		f("y", 4, "STRING", "OPTIONAL"),
		f("z", 5, "INT64", "OPTIONAL"),
		f("child", 6, "MESSAGE", "OPTIONAL", `type_name: ".skew.Sub"`), `}`,
	)
	p := policyOf(t, "/skew.S/M")
	parse := func(desc protoreflect.MessageDescriptor, raw []byte) *dynamicpb.Message {
		m := dynamicpb.NewMessage(desc)
		require.NoError(t, proto.Unmarshal(raw, m))
		return m
	}
	plainDiffers := 0
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 2))
		sent := dynamicpb.NewMessage(recent)
		fill(r, sent, 4)
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(sent)
		require.NoError(t, err)
		was, is := parse(old, raw), parse(recent, raw)
		require.Equal(t, fingerprintOf(t, p, was), fingerprintOf(t, p, is), "seed %d: %x", seed, raw)

		wasRaw, err := proto.MarshalOptions{Deterministic: true}.Marshal(was)
		require.NoError(t, err)
		if !bytes.Equal(wasRaw, raw) {
			plainDiffers++
		}
		require.Equal(t, fingerprintOf(t, p, is), fingerprintOf(t, p, parse(recent, wasRaw)), "seed %d, through an old server", seed)

		changed := parse(recent, raw)
		for proto.Equal(is, changed) {
			change(r, changed)
		}
		raw, err = proto.MarshalOptions{Deterministic: true}.Marshal(changed)
		require.NoError(t, err)
		require.NotEqual(t, fingerprintOf(t, p, was), fingerprintOf(t, p, parse(old, raw)), "seed %d: an unknown field changed", seed)
	}
	require.Greater(t, plainDiffers, 100, "the messages are too simple to show anything")
}

// Nesting must not make the canonical form slow: each level here is out of order and drops a field.
func TestFingerprintOfDeepRequest(t *testing.T) {
	const plain = testpb.TestService_Plain_FullMethodName
	p := policyOf(t, plain)
	blob := bytes.Repeat([]byte("x"), 1<<20)
	m := &testpb.Request{Blob: blob}
	for range 5_000 {
		m = &testpb.Request{Blob: []byte("b"), Choice: &testpb.Request_Right{Right: m}}
	}
	pl, err := p.planOf(m.ProtoReflect().Descriptor())
	require.NoError(t, err)
	body, err := canonicalBytes(pl, m)
	require.NoError(t, err)
	again := &testpb.Request{}
	require.NoError(t, proto.Unmarshal(body, again))
	require.True(t, proto.Equal(m, again))
}

// reference is the canonical form in the plainest words: level by level, with copies.
func reference(pl *plan, b []byte) []byte {
	type rec struct {
		num protowire.Number
		b   []byte
	}
	var recs []rec
	for len(b) > 0 {
		num, typ, tag := protowire.ConsumeTag(b)
		n := protowire.ConsumeFieldValue(num, typ, b[tag:])
		raw, f := b[:tag+n], pl.fields[num]
		b = b[tag+n:]
		switch {
		case f == nil || !f.dropped && f.wire != typ:
			recs = append(recs, rec{num, raw})
		case f.dropped:
		case typ == protowire.BytesType:
			value, _ := protowire.ConsumeBytes(raw[tag:])
			recs = append(recs, rec{num, protowire.AppendBytes(slices.Clone(raw[:tag]), reference(f.message, value))})
		default:
			value, _ := protowire.ConsumeGroup(num, raw[tag:])
			out := append(slices.Clone(raw[:tag]), reference(f.message, value)...)
			recs = append(recs, rec{num, protowire.AppendTag(out, num, protowire.EndGroupType)})
		}
	}
	slices.SortStableFunc(recs, func(a, b rec) int { return cmp.Compare(a.num, b.num) })
	var out []byte
	for _, r := range recs {
		out = append(out, r.b...)
	}
	return out
}

func FuzzCanonicalBytes(f *testing.F) {
	for _, tt := range fingerprintCases() {
		raw, err := proto.Marshal(tt.req)
		require.NoError(f, err)
		f.Add(raw)
	}
	f.Add([]byte{0x0b, 0x13, 0x14, 0x0c, 0x0a, 0x80, 0x00})
	p := policyOf(f, testpb.TestService_Fielded_FullMethodName)
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, m := range []proto.Message{&testpb.Request{}, &testpb.FieldedRequest{}} {
			pl, err := p.planOf(m.ProtoReflect().Descriptor())
			require.NoError(t, err)
			garbage, err := canonicalize(pl, raw) // whatever comes, no panic
			require.True(t, err != nil || len(garbage) <= len(raw))

			if proto.Unmarshal(raw, m) != nil {
				continue
			}
			body, err := canonicalBytes(pl, m)
			require.NoError(t, err)
			in, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
			require.NoError(t, err)
			require.Equal(t, string(reference(pl, in)), string(body))

			again := m.ProtoReflect().New().Interface()
			require.NoError(t, proto.Unmarshal(body, again))
			twice, err := canonicalBytes(pl, again)
			require.NoError(t, err)
			require.Equal(t, string(body), string(twice), "the canonical form of the canonical form")
		}
	})
}

func BenchmarkFingerprint(b *testing.B) {
	p := policyOf(b, testpb.TestService_Plain_FullMethodName)
	many := func(n int) *testpb.Request {
		m := &testpb.Request{}
		for i := range n {
			m.Children = append(m.Children, &testpb.Request{Text: "text of a child", Number: int64(i)})
		}
		return m
	}
	for _, tt := range []struct {
		name string
		req  proto.Message
	}{
		{"flat", &testpb.Request{Text: strings.Repeat("t", 80), Number: 1 << 40, Packed: []int32{1, 2, 3}}},
		{"blob_1KB", &testpb.Request{Blob: make([]byte, 1<<10)}},
		{"blob_64KB", &testpb.Request{Blob: make([]byte, 1<<16)}},
		{"out_of_order", &testpb.Request{Text: "t", Choice: &testpb.Request_Left{Left: "l"}, Blob: make([]byte, 64)}},
		{"36_children", many(36)},
		{"2500_children", many(2500)},
		{"map_40", &testpb.Request{Labels: func() map[string]string {
			m := map[string]string{}
			for i := range 40 {
				m[fmt.Sprintf("key-%d", i)] = "value"
			}
			return m
		}()}},
	} {
		b.Run(tt.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.fingerprint(nil, nil, tt.req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// fill sets random fields of a message.
func fill(r *rand.Rand, m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if r.IntN(2) == 0 {
			set(r, m, fields.Get(i), depth)
		}
	}
}

// change sets one random field of a message anew.
func change(r *rand.Rand, m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	fd := fields.Get(r.IntN(fields.Len()))
	if r.IntN(2) == 0 && m.Has(fd) && fd.Message() != nil && !fd.IsList() && !fd.IsMap() {
		change(r, m.Mutable(fd).Message())
		return
	}
	m.Clear(fd)
	if r.IntN(4) > 0 {
		set(r, m, fd, 2)
	}
}

func set(r *rand.Rand, m protoreflect.Message, fd protoreflect.FieldDescriptor, depth int) {
	switch {
	case fd.FullName() == "google.protobuf.Any.type_url":
		m.Set(fd, protoreflect.ValueOfString("type.googleapis.com/some.Message"))
	case fd.Message() != nil && depth == 0:
	case fd.IsMap():
		for range r.IntN(4) {
			key := scalar(r, fd.MapKey()).MapKey()
			if fd.MapValue().Message() == nil {
				m.Mutable(fd).Map().Set(key, scalar(r, fd.MapValue()))
				continue
			}
			fill(r, m.Mutable(fd).Map().Mutable(key).Message(), depth-1)
		}
	case fd.IsList():
		for range r.IntN(4) {
			if fd.Message() == nil {
				m.Mutable(fd).List().Append(scalar(r, fd))
				continue
			}
			fill(r, m.Mutable(fd).List().AppendMutable().Message(), depth-1)
		}
	case fd.Message() != nil:
		fill(r, m.Mutable(fd).Message(), depth-1)
	default:
		m.Set(fd, scalar(r, fd))
	}
}

func scalar(r *rand.Rand, fd protoreflect.FieldDescriptor) protoreflect.Value {
	n := int64(r.Uint64()) >> r.IntN(64)
	switch fd.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(strings.Repeat("s", r.IntN(3)) + fmt.Sprint(n%100))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(bytes.Repeat([]byte{byte(n)}, r.IntN(200)))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	case protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	default:
		return protoreflect.ValueOfInt64(n)
	}
}

// shuffle puts the records of a message into another order that means the same.
func shuffle(t *testing.T, r *rand.Rand, raw []byte) []byte {
	byNumber := map[protowire.Number][]byte{}
	var numbers []protowire.Number
	for len(raw) > 0 {
		num, _, n := protowire.ConsumeField(raw)
		require.Positive(t, n)
		if byNumber[num] == nil {
			numbers = append(numbers, num)
		}
		byNumber[num] = append(byNumber[num], raw[:n]...)
		raw = raw[n:]
	}
	r.Shuffle(len(numbers), func(i, j int) { numbers[i], numbers[j] = numbers[j], numbers[i] })
	var out []byte
	for _, num := range numbers {
		out = append(out, byNumber[num]...)
	}
	return out
}
