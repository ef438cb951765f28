package interceptor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
)

func TestSharedScope(t *testing.T) {
	scope, err := SharedScope(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, scope)
}

func TestMetadataScope(t *testing.T) {
	for name, tt := range map[string]struct {
		md    metadata.MD
		scope string
	}{
		"one_value_is_the_scope":      {metadata.Pairs("x-tenant", "acme"), "acme"},
		"none_is_no_scope":            {metadata.MD{}, ""},
		"two_values_are_no_scope":     {metadata.Pairs("x-tenant", "acme", "x-tenant", "acme"), ""},
		"an_empty_value_is_no_scope":  {metadata.Pairs("x-tenant", ""), ""},
		"other_metadata_is_no_scope":  {metadata.Pairs("x-user", "acme"), ""},
		"no_metadata_at_all_no_scope": {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			if tt.md != nil {
				ctx = metadata.NewIncomingContext(ctx, tt.md)
			}
			scope, err := MetadataScope("X-Tenant")(ctx)
			require.NoError(t, err)
			require.Equal(t, tt.scope, scope)
		})
	}
	t.Run("an_empty_name_panics", func(t *testing.T) {
		require.Panics(t, func() { MetadataScope("") })
	})
}

func TestPeerScope(t *testing.T) {
	ca := newAuthority(t)
	spiffe := &url.URL{Scheme: "spiffe", Host: "acme.test", Path: "/ns/pay/sa/web"}
	other := &url.URL{Scheme: "spiffe", Host: "acme.test", Path: "/other"}
	subject := pkix.Name{Organization: []string{"Acme, Inc."}, CommonName: "web"}

	for name, tt := range map[string]struct {
		certificate *tls.Certificate
		auth        tls.ClientAuthType
		scope       string
	}{
		"the_spiffe_id_is_the_scope":              {ca.issue(t, subject, spiffe), tls.RequireAndVerifyClientCert, "spiffe://acme.test/ns/pay/sa/web"},
		"the_subject_is_the_scope_without_one":    {ca.issue(t, subject), tls.RequireAndVerifyClientCert, `CN=web,O=Acme\, Inc.`},
		"a_uri_that_is_no_spiffe_id_is_not_asked": {ca.issue(t, subject, &url.URL{Scheme: "https", Host: "acme.test"}), tls.RequireAndVerifyClientCert, `CN=web,O=Acme\, Inc.`},
		"two_spiffe_ids_are_no_scope":             {ca.issue(t, subject, spiffe, other), tls.RequireAndVerifyClientCert, ""},
		"an_empty_subject_is_no_scope":            {ca.issue(t, pkix.Name{}), tls.RequireAndVerifyClientCert, ""},
		"an_unverified_certificate_is_no_scope":   {newAuthority(t).issue(t, subject, spiffe), tls.RequireAnyClientCert, ""},
		"no_certificate_is_no_scope":              {nil, tls.VerifyClientCertIfGiven, ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := credentials.NewTLS(&tls.Config{
				Certificates: []tls.Certificate{*ca.issue(t, pkix.Name{CommonName: "server"})},
				ClientAuth:   tt.auth,
				ClientCAs:    ca.pool,
			})
			config := &tls.Config{RootCAs: ca.pool, ServerName: "localhost"}
			if tt.certificate != nil {
				config.Certificates = []tls.Certificate{*tt.certificate}
			}
			require.Equal(t, tt.scope, scopeOverWire(t, server, credentials.NewTLS(config)))
		})
	}
	t.Run("plain_text_is_no_scope", func(t *testing.T) {
		require.Empty(t, scopeOverWire(t, insecure.NewCredentials(), insecure.NewCredentials()))
	})
	t.Run("a_call_without_a_peer_is_no_scope", func(t *testing.T) {
		scope, err := PeerScope(t.Context())
		require.NoError(t, err)
		require.Empty(t, scope)
		scope, err = PeerScope(peer.NewContext(t.Context(), &peer.Peer{}))
		require.NoError(t, err)
		require.Empty(t, scope)
	})
}

type scopeServer struct {
	testpb.UnimplementedTestServiceServer
}

func (scopeServer) Plain(ctx context.Context, _ *testpb.Request) (*testpb.Response, error) {
	scope, err := PeerScope(ctx)
	return &testpb.Response{Text: scope}, err
}

// scopeOverWire asks a server on a real listener for the scope of its caller.
func scopeOverWire(t *testing.T, server, client credentials.TransportCredentials) string {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer(grpc.Creds(server))
	testpb.RegisterTestServiceServer(srv, scopeServer{})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(lis) }()
	t.Cleanup(func() {
		srv.Stop()
		require.NoError(t, <-done)
	})
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(client))
	require.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resp, err := testpb.NewTestServiceClient(conn).Plain(ctx, &testpb.Request{})
	require.NoError(t, err)
	return resp.GetText()
}

// authority issues certificates for one test.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "authority"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &authority{key, cert, pool}
}

func (a *authority) issue(t *testing.T, subject pkix.Name, uris ...*url.URL) *tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      subject,
		DNSNames:     []string{"localhost"},
		URIs:         uris,
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	require.NoError(t, err)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
