package interceptor

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
)

func fingerprintOf(t testing.TB, p *policy, m proto.Message) string {
	t.Helper()
	fp, err := p.fingerprint(nil, nil, m)
	require.NoError(t, err)
	return string(fp)
}
