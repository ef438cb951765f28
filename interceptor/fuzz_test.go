package interceptor_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	"github.com/oncerpc/oncerpc/store/storetest"
)

// FuzzUnary sends what callers may send: whatever it is, the answer is one that a caller can understand, and a second
// call gets the same.
func FuzzUnary(f *testing.F) {
	f.Add("Plain", key("a"), "tenant", []byte{})
	f.Add("Required", "", "", []byte("\x0a\x01x"))
	f.Add("Fielded", key("a"), "\x00", []byte("\x12\x10aaaaaaaaaaaaaaaa"))
	f.Add("Plain", `"`+key("a")+`"`, "t", []byte("\xff\xff\xff"))
	f.Add("Nowhere", key("a")+"\\", "t", []byte("\x1b\x1c"))
	s := newServer(f, new(storetest.Memory), &service{})
	f.Fuzz(func(t *testing.T, method, key, tenant string, request []byte) {
		var replies [2]reply
		for i := range replies {
			req := &testpb.Request{}
			req.ProtoReflect().SetUnknown(request)
			ctx := metadata.NewOutgoingContext(t.Context(), metadata.MD{interceptor.MetadataKey: {key}, "tenant": {tenant}})
			replies[i] = s.invoke(ctx, method, req)
		}
		first, second := replies[0], replies[1]
		require.NotEqual(t, codes.Unknown, status.Code(first.err), "%v", first.err)
		if status.Code(first.err) == codes.Unavailable || interceptor.StatusOf(first.trailer) == interceptor.StatusNone {
			return // refused before it came to a handler
		}
		require.Equal(t, status.Code(first.err), status.Code(second.err), "%v", second.err)
		if first.status(t) == interceptor.StatusExecuted || first.status(t) == interceptor.StatusReplayed {
			require.Equal(t, interceptor.StatusReplayed, second.status(t))
			require.Equal(t, first.resp.GetNumber(), second.resp.GetNumber())
		}
	})
}
