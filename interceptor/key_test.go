package interceptor

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
)

const goodKey = "0123456789abcdef"

func TestCheckKey(t *testing.T) {
	for name, tt := range map[string]struct {
		key    string
		format func(string) error
		wrong  string // part of the error's text
	}{
		"sixteen_characters_are_enough":        {key: goodKey},
		"a_uuid_is_a_key":                      {key: "01890a5d-ac96-774b-bcce-b302099a8057"},
		"every_visible_character_but_three":    {key: "!#$%&'()*+-./:;<=>?@[]^_`{|}~"},
		"255_bytes_are_allowed":                {key: strings.Repeat("a", 255)},
		"256_bytes_are_too_many":               {key: strings.Repeat("a", 256), wrong: "256 bytes"},
		"fifteen_characters_are_too_few":       {key: goodKey[1:], wrong: "15 characters"},
		"an_empty_key_is_refused":              {key: "", wrong: "empty"},
		"a_space_is_refused":                   {key: goodKey + " ", wrong: "space"},
		"a_control_character_is_refused":       {key: goodKey + "\x7f", wrong: "visible ASCII"},
		"a_letter_beyond_ascii_is_refused":     {key: goodKey + "é", wrong: "visible ASCII"},
		"a_comma_is_refused":                   {key: goodKey + ",", wrong: "comma"},
		"a_quote_is_refused":                   {key: goodKey + `"`, wrong: "quote"},
		"a_backslash_is_refused":               {key: goodKey + `\`, wrong: "backslash"},
		"a_format_may_allow_what_is_short":     {key: "42", format: func(string) error { return nil }},
		"a_format_may_refuse":                  {key: goodKey, format: UUIDKey, wrong: "UUID"},
		"no_format_allows_an_empty_key":        {key: "", format: func(string) error { return nil }, wrong: "empty"},
		"no_format_allows_more_than_255_bytes": {key: strings.Repeat("a", 256), format: func(string) error { return nil }, wrong: "256 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkKey(tt.key, tt.format)
			if tt.wrong == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.wrong)
			if len(tt.key) > 3 {
				require.NotContains(t, err.Error(), tt.key)
			}
		})
	}
}

func TestUUIDKey(t *testing.T) {
	for _, key := range []string{
		"01890a5d-ac96-774b-bcce-b302099a8057",
		"01890A5D-AC96-774B-BCCE-B302099A8057",
		"c232ab00-9414-11ec-b3c8-9f6bdeced846",
	} {
		require.NoError(t, UUIDKey(key))
	}
	for _, key := range []string{
		"",
		"01890a5dac96774bbcceb302099a8057",
		"01890a5d-ac96-774b-bcce-b302099a805",
		"01890a5d-ac96-774b-bcce-b302099a80577",
		"01890a5d-ac96-774bb-cce-b302099a8057",
		"01890a5d-ac96-774b-bcce-b302099a805g",
		"{1890a5d-ac96-774b-bcce-b302099a805}",
		"00000000-0000-0000-0000-000000000000",
	} {
		err := UUIDKey(key)
		require.Error(t, err, key)
		if key != "" {
			require.NotContains(t, err.Error(), key)
		}
	}
}

func TestUnquote(t *testing.T) {
	for name, tt := range map[string]struct {
		value, key string
		ok         bool
	}{
		"an_unquoted_value_stays":                {`abc`, `abc`, true},
		"quotes_come_off":                        {`"abc"`, `abc`, true},
		"an_empty_string_is_empty":               {`""`, ``, true},
		"an_escaped_quote_is_a_quote":            {`"a\"b"`, `a"b`, true},
		"an_escaped_backslash_is_a_backslash":    {`"a\\"`, `a\`, true},
		"a_quote_inside_an_unquoted_value_stays": {`ab"c`, `ab"c`, true},
		"parameters_are_refused":                 {`"abc";v=1`, ``, false},
		"a_second_string_is_refused":             {`"abc", "def"`, ``, false},
		"a_space_after_the_string_is_refused":    {`"abc" `, ``, false},
		"a_missing_closing_quote_is_refused":     {`"abc`, ``, false},
		"an_escaped_closing_quote_closes_not":    {`"abc\"`, ``, false},
		"a_lone_quote_is_refused":                {`"`, ``, false},
		"an_escape_of_a_letter_is_refused":       {`"a\bc"`, ``, false},
		"an_escape_at_the_end_is_refused":        {`"abc\`, ``, false},
		"a_letter_beyond_ascii_is_refused":       {`"aé\""`, ``, false},
	} {
		t.Run(name, func(t *testing.T) {
			key, err := unquote(tt.value)
			require.Equal(t, tt.key, key)
			require.Equal(t, tt.ok, err == nil, "%v", err)
		})
	}
}

func TestKeyFor(t *testing.T) {
	t.Run("vectors", func(t *testing.T) {
		require.Equal(t, "6c6f085c81d1f646c923513b972f3cbe", KeyFor("charge", "42"))
		require.Equal(t, "dbc43e3d0a73cacac28ad0f935f5a89f", KeyFor("charge42"))
		require.Equal(t, "af5570f5a1810b7af78caf4bc70a660f", KeyFor(""))
	})
	t.Run("it_makes_keys", func(t *testing.T) {
		require.NoError(t, checkKey(KeyFor("charge", "42"), nil))
	})
	t.Run("parts_cannot_be_cut_differently", func(t *testing.T) {
		require.NotEqual(t, KeyFor("ab", "c"), KeyFor("a", "bc"))
		require.NotEqual(t, KeyFor("ab"), KeyFor("ab", ""))
	})
	t.Run("no_parts_panic", func(t *testing.T) {
		require.Panics(t, func() { KeyFor() })
	})
}

func TestCallKey(t *testing.T) {
	const other = "fedcba9876543210"
	policies, err := newPolicies(commonOptions{})
	require.NoError(t, err)
	fielded, err := policies.of(testpb.TestService_Fielded_FullMethodName)
	require.NoError(t, err)
	plain, err := policies.of(testpb.TestService_Plain_FullMethodName)
	require.NoError(t, err)

	for name, tt := range map[string]struct {
		values []string
		policy *policy
		req    any
		key    string
		wrong  string
	}{
		"no_key_is_no_error":                      {nil, plain, &testpb.Request{}, "", ""},
		"an_empty_field_is_no_key":                {nil, fielded, &testpb.FieldedRequest{}, "", ""},
		"metadata_carries_it":                     {[]string{goodKey}, plain, &testpb.Request{}, goodKey, ""},
		"the_field_carries_it":                    {nil, fielded, &testpb.FieldedRequest{RequestId: goodKey}, goodKey, ""},
		"the_same_key_in_both_is_one_key":         {[]string{goodKey}, fielded, &testpb.FieldedRequest{RequestId: goodKey}, goodKey, ""},
		"quoted_and_unquoted_are_the_same_key":    {[]string{`"` + goodKey + `"`}, fielded, &testpb.FieldedRequest{RequestId: goodKey}, goodKey, ""},
		"different_keys_are_refused":              {[]string{goodKey}, fielded, &testpb.FieldedRequest{RequestId: other}, "", "differ"},
		"two_values_are_refused":                  {[]string{goodKey, goodKey}, plain, &testpb.Request{}, "", "2 times"},
		"an_empty_value_is_refused":               {[]string{""}, plain, &testpb.Request{}, "", "empty"},
		"a_quoted_empty_value_is_refused":         {[]string{`""`}, plain, &testpb.Request{}, "", "empty"},
		"a_malformed_value_is_refused":            {[]string{"a b"}, plain, &testpb.Request{}, "", "needs at least 16"},
		"a_malformed_field_is_refused":            {nil, fielded, &testpb.FieldedRequest{RequestId: "42"}, "", "needs at least 16"},
		"parameters_are_refused":                  {[]string{`"` + goodKey + `";a=1`}, plain, &testpb.Request{}, "", "closing quote"},
		"a_request_that_is_no_message_has_no_key": {nil, fielded, "text", "", ""},
		"a_nil_request_has_no_key":                {nil, fielded, (*testpb.FieldedRequest)(nil), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := metadata.NewIncomingContext(context.Background(), metadata.MD{MetadataKey: tt.values})
			key, err := callKey(ctx, tt.policy, tt.req, nil)
			require.Equal(t, tt.key, key)
			if tt.wrong == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.wrong)
			require.NotContains(t, err.Error(), goodKey)
			require.NotContains(t, err.Error(), other)
		})
	}
	t.Run("a_call_without_metadata_has_no_key", func(t *testing.T) {
		key, err := callKey(context.Background(), plain, &testpb.Request{}, nil)
		require.NoError(t, err)
		require.Empty(t, key)
	})
	t.Run("the_format_is_asked", func(t *testing.T) {
		bad := errors.New("wrong prefix")
		ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(MetadataKey, goodKey))
		_, err := callKey(ctx, plain, &testpb.Request{}, func(string) error { return bad })
		require.ErrorIs(t, err, bad)
	})
}

func FuzzCheckKey(f *testing.F) {
	f.Add(goodKey)
	f.Add("a,b\"c\\ \x00é")
	f.Fuzz(func(t *testing.T, key string) {
		if err := checkKey(key, nil); err != nil {
			if len(key) >= minKey {
				require.NotContains(t, err.Error(), key)
			}
			return
		}
		require.GreaterOrEqual(t, len(key), minKey)
		require.LessOrEqual(t, len(key), maxKey)
		require.False(t, strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`,"\`, r) }))
		same, err := unquote(`"` + key + `"`)
		require.NoError(t, err)
		require.Equal(t, key, same)
	})
}

func FuzzUnquote(f *testing.F) {
	f.Add(`"a\"b"`)
	f.Add(`"abc";v=1`)
	f.Add(`abc`)
	f.Fuzz(func(t *testing.T, value string) {
		got, err := unquote(value)
		if err != nil {
			require.Empty(t, got)
			return
		}
		if !strings.HasPrefix(value, `"`) {
			require.Equal(t, value, got)
			return
		}
		require.Equal(t, value, `"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(got)+`"`)
	})
}

func BenchmarkCallKey(b *testing.B) {
	policies, err := newPolicies(commonOptions{})
	require.NoError(b, err)
	p, err := policies.of(testpb.TestService_Fielded_FullMethodName)
	require.NoError(b, err)
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(MetadataKey, goodKey))
	req := &testpb.FieldedRequest{RequestId: goodKey}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := callKey(ctx, p, req, nil); err != nil {
			b.Fatal(err)
		}
	}
}
