package interceptor_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
)

func TestClientCallOptions(t *testing.T) {
	numbered := func(failures int) clientScript {
		return func(ctx context.Context, n int, _ any) (*testpb.Response, error) {
			md := metadata.Pairs(fmt.Sprintf("attempt-%d", n), "x", "number", fmt.Sprint(n), interceptor.MetadataStatus, "executed")
			if err := grpc.SetTrailer(ctx, md); err != nil {
				return nil, err
			}
			if err := grpc.SetHeader(ctx, md); err != nil {
				return nil, err
			}
			if n <= failures {
				return nil, errClientUnavailable
			}
			return &testpb.Response{}, nil
		}
	}
	clientBubble(t, "header_trailer_and_peer_are_of_the_last_attempt", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), numbered(2))
		var header, trailer, trailer2 metadata.MD
		var from peer.Peer
		_, err := h.Guarded(t.Context(), &testpb.Request{},
			grpc.Header(&header), grpc.Trailer(&trailer), grpc.Trailer(&trailer2), grpc.Peer(&from))
		require.NoError(t, err)
		for _, md := range []metadata.MD{header, trailer, trailer2} {
			require.Equal(t, []string{"3"}, md.Get("number"))
			require.Empty(t, md.Get("attempt-1"))
			require.Empty(t, md.Get("attempt-2"))
		}
		require.Equal(t, interceptor.StatusExecuted, interceptor.StatusOf(trailer))
		require.NotNil(t, from.Addr)
	})
	clientBubble(t, "last_attempt_without_a_stream_leaves_nothing_of_earlier_ones", func(t *testing.T) {
		var h *clientHarness
		attempts := 0
		stopBeforeSecond := func(
			ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			if attempts++; attempts == 2 {
				h.server.Stop()
				synctest.Wait() // the client has seen it
			}
			return invoker(ctx, method, req, reply, cc, opts...)
		}
		h = newClientHarness(t, interceptor.NewClient(interceptor.WithAttempts(2)), numbered(9), grpc.WithChainUnaryInterceptor(stopBeforeSecond))
		header, trailer := metadata.Pairs("old", "x"), metadata.Pairs("old", "x")
		from := peer.Peer{Addr: &net.IPAddr{}}
		_, err := h.Guarded(t.Context(), &testpb.Request{}, grpc.Header(&header), grpc.Trailer(&trailer), grpc.Peer(&from))
		requireClientCode(t, codes.Unavailable, err)
		require.NotContains(t, err.Error(), "scripted")
		require.Len(t, h.attempts(), 1)
		require.Equal(t, 2, attempts)
		require.Empty(t, header)
		require.Empty(t, trailer)
		require.Nil(t, from.Addr)
	})
	clientBubble(t, "pushback_of_an_earlier_attempt_is_forgotten", func(t *testing.T) {
		var sent []time.Time
		h := newClientHarness(t, interceptor.NewClient(interceptor.WithAttempts(3)),
			clientFailing(1, errClientUnavailable, "grpc-retry-pushback-ms", "30000"),
			grpc.WithChainUnaryInterceptor(func(
				ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption,
			) error {
				if sent = append(sent, time.Now()); len(sent) == 2 {
					return errClientUnavailable // no stream was made
				}
				return invoker(ctx, method, req, reply, cc, opts...)
			}))
		_, err := h.Guarded(t.Context(), &testpb.Request{})
		require.NoError(t, err)
		require.Equal(t, 30*time.Second, sent[1].Sub(sent[0]))
		require.LessOrEqual(t, sent[2].Sub(sent[1]), 100*time.Millisecond)
	})
	clientBubble(t, "OnFinish_runs_once_with_the_error_of_the_call", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(interceptor.WithAttempts(3)), clientFailing(5, errClientUnavailable))
		var finished []error
		onFinish := grpc.OnFinish(func(err error) { finished = append(finished, err) })
		_, err := h.Guarded(t.Context(), &testpb.Request{}, onFinish)
		require.Error(t, err)
		require.Equal(t, []error{err}, finished)
		_, err = h.Guarded(t.Context(), &testpb.Request{}, onFinish, onFinish)
		require.NoError(t, err)
		require.Equal(t, []error{finished[0], nil, nil}, finished)
		_, err = h.Guarded(t.Context(), &testpb.Request{}, onFinish, interceptor.Key("bad"))
		require.Error(t, err)
		require.Equal(t, []error{finished[0], nil, nil, err}, finished)
	})
	clientBubble(t, "inner_interceptors_run_for_every_attempt_on_the_same_context", func(t *testing.T) {
		var tokens [][]string
		h := newClientHarness(t, interceptor.NewClient(), func(ctx context.Context, n int, _ any) (*testpb.Response, error) {
			tokens = append(tokens, metadata.ValueFromIncomingContext(ctx, "token"))
			if n < 3 {
				return nil, errClientUnavailable
			}
			return clientExecuted(ctx)
		}, grpc.WithChainUnaryInterceptor(func(
			ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			return invoker(metadata.AppendToOutgoingContext(ctx, "token", "t"), method, req, reply, cc, opts...)
		}))
		_, err := h.Guarded(t.Context(), &testpb.Request{})
		require.NoError(t, err)
		require.Equal(t, [][]string{{"t"}, {"t"}, {"t"}}, tokens)
	})
	t.Run("parallel_calls_share_options_and_context", func(t *testing.T) {
		var finished, inner atomic.Int64
		var failed sync.Map // keys
		h := newClientHarness(t, interceptor.NewClient(interceptor.WithBackoff(1, 1)), func(ctx context.Context, n int, _ any) (*testpb.Response, error) {
			if n%10 == 0 {
				key := metadata.ValueFromIncomingContext(ctx, interceptor.MetadataKey)[0]
				if _, again := failed.LoadOrStore(key, true); !again {
					return nil, errClientUnavailable
				}
			}
			return clientExecuted(ctx)
		},
			grpc.WithDefaultCallOptions(grpc.WaitForReady(true), grpc.OnFinish(func(error) { finished.Add(1) })),
			grpc.WithChainUnaryInterceptor(func(
				ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption,
			) error {
				inner.Add(1)
				return invoker(ctx, method, req, reply, cc, append(opts, grpc.MaxCallRecvMsgSize(1<<20))...)
			}))
		shared := make([]grpc.CallOption, 0, 16)
		shared = append(shared, grpc.StaticMethod(), grpc.OnFinish(func(error) { finished.Add(1) }))
		ctx := metadata.NewOutgoingContext(t.Context(), metadata.Pairs("other", "x"))
		keys := map[string]bool{}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for range 10 {
					var trailer metadata.MD
					_, err := h.Guarded(ctx, &testpb.Request{}, shared...)
					if err != nil {
						t.Error(err)
					}
					_, err = h.Guarded(ctx, &testpb.Request{}, append(shared[:2:2], grpc.Trailer(&trailer))...)
					if err != nil || interceptor.StatusOf(trailer) != interceptor.StatusExecuted {
						t.Error(err, trailer)
					}
				}
			})
		}
		wg.Wait()
		for _, a := range h.attempts() {
			require.Len(t, a.keys, 1)
			keys[a.keys[0]] = true
		}
		require.Len(t, keys, 400)
		require.EqualValues(t, 800, finished.Load())
		require.EqualValues(t, len(h.attempts()), inner.Load())
		require.Greater(t, len(h.attempts()), 400)
	})
}

func TestClientReply(t *testing.T) {
	full := &testpb.Response{Text: "half", Number: 7}
	clientBubble(t, "failed_attempt_leaves_nothing_in_the_reply", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), func(ctx context.Context, n int, _ any) (*testpb.Response, error) {
			if n < 3 {
				return full, errClientUnavailable
			}
			return clientExecuted(ctx)
		})
		reply := new(testpb.Response)
		merging := grpc.ForceCodecV2(clientMergingCodec{encoding.GetCodecV2("proto")})
		require.NoError(t, h.conn.Invoke(t.Context(), testpb.TestService_Guarded_FullMethodName, &testpb.Request{}, reply, merging))
		require.Len(t, h.attempts(), 3)
		require.True(t, proto.Equal(&testpb.Response{Text: "done"}, reply), "%v", reply)
	})
	clientBubble(t, "reply_is_empty_on_a_final_error", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(interceptor.WithAttempts(2)), func(context.Context, int, any) (*testpb.Response, error) {
			return full, errClientUnavailable
		})
		reply := new(testpb.Response)
		err := h.conn.Invoke(t.Context(), testpb.TestService_Guarded_FullMethodName, &testpb.Request{}, reply)
		requireClientCode(t, codes.Unavailable, err)
		require.Len(t, h.attempts(), 2)
		require.True(t, proto.Equal(&testpb.Response{}, reply), "%v", reply)
	})
}

// clientMergingCodec decodes as vtprotobuf's codec does: without emptying the message before.
type clientMergingCodec struct{ encoding.CodecV2 }

func (clientMergingCodec) Unmarshal(data mem.BufferSlice, v any) error {
	return proto.UnmarshalOptions{Merge: true}.Unmarshal(data.Materialize(), v.(proto.Message))
}

func TestClientCodec(t *testing.T) {
	request := &testpb.Request{Labels: map[string]string{}}
	for i := range 50 {
		request.Labels[fmt.Sprintf("label-%02d", i)] = "x"
	}
	inOrder := func(t *testing.T, h *clientHarness) bool {
		t.Helper()
		for _, a := range h.attempts() {
			var keys []string
			for b := a.wire; len(b) > 0; {
				_, _, n := protowire.ConsumeTag(b)
				entry, m := protowire.ConsumeBytes(b[n:])
				_, _, tag := protowire.ConsumeTag(entry)
				key, _ := protowire.ConsumeString(entry[tag:])
				keys = append(keys, key)
				b = b[n+m:]
			}
			require.Len(t, keys, 50)
			for i, key := range keys {
				if key != fmt.Sprintf("label-%02d", i) {
					return false
				}
			}
		}
		return true
	}
	clientBubble(t, "maps_go_out_sorted", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(3, errClientUnavailable))
		_, err := h.Guarded(t.Context(), request)
		require.NoError(t, err)
		require.Len(t, h.attempts(), 4)
		require.True(t, inOrder(t, h))
	})
	clientBubble(t, "large_request_arrives_whole", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(0, nil))
		large := &testpb.Request{Blob: make([]byte, 100_000), Labels: request.Labels}
		_, err := h.Guarded(t.Context(), large)
		require.NoError(t, err)
		require.True(t, proto.Equal(large, h.attempts()[0].request.(proto.Message)))
	})
	clientBubble(t, "call_without_a_key_is_marshalled_as_ever", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(0, nil))
		for range 5 {
			_, err := h.Put(t.Context(), request)
			require.NoError(t, err)
		}
		require.False(t, inOrder(t, h))
	})
	clientBubble(t, "codec_or_subtype_of_an_option_is_left_alone", func(t *testing.T) {
		for name, o := range map[string]func(*clientCountingCodec) grpc.CallOption{
			"codec v2": func(c *clientCountingCodec) grpc.CallOption { return grpc.ForceCodecV2(c) },
			"subtype": func(*clientCountingCodec) grpc.CallOption {
				return grpc.CallContentSubtype("proto")
			},
		} {
			counting := &clientCountingCodec{CodecV2: encoding.GetCodecV2("proto")}
			h := newClientHarness(t, interceptor.NewClient(), clientFailing(4, errClientUnavailable))
			_, err := h.Guarded(t.Context(), request, o(counting))
			require.NoError(t, err, name)
			require.False(t, inOrder(t, h), name)
			if name == "codec v2" {
				require.Equal(t, 5, counting.marshalled)
			}
		}
	})
	clientBubble(t, "registered_codec_is_left_alone", func(t *testing.T) {
		own := encoding.GetCodecV2("proto")
		counting := &clientCountingCodec{CodecV2: own}
		encoding.RegisterCodecV2(counting)
		defer encoding.RegisterCodecV2(own)
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(4, errClientUnavailable))
		_, err := h.Guarded(t.Context(), request)
		require.NoError(t, err)
		require.Equal(t, 5, counting.marshalled)
		require.False(t, inOrder(t, h))
	})
	t.Run("what_is_no_message_is_refused_as_ever", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(0, nil))
		err := h.conn.Invoke(t.Context(), testpb.TestService_Guarded_FullMethodName, "text", new(testpb.Response))
		requireClientCode(t, codes.Internal, err)
	})
}

type clientCountingCodec struct {
	encoding.CodecV2

	marshalled int
}

func (c *clientCountingCodec) Marshal(v any) (mem.BufferSlice, error) {
	if _, ok := v.(*testpb.Request); ok {
		c.marshalled++
	}
	return c.CodecV2.Marshal(v)
}
