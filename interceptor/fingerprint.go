package interceptor

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
)

// Names of the algorithms that fingerprints begin with, before a zero byte.
const (
	fingerprintName       = "fp1"
	customFingerprintName = "custom"
)

// fingerprint tells whether two calls ask for the same: a digest of the method, of chosen metadata, and of the
// request's canonical bytes. md gives the values of a name.
func (p *policy) fingerprint(md func(name string) []string, names []string, req proto.Message) ([]byte, error) {
	if req == nil {
		return nil, errors.New("the request is nil")
	}
	pl, err := p.planOf(req.ProtoReflect().Descriptor())
	if err != nil {
		return nil, err
	}
	body, err := canonicalBytes(pl, req)
	if err != nil {
		return nil, err
	}
	names = metadataNames(names)
	head := make([]byte, 0, 256)
	head = append(head, fingerprintName...)
	head = appendPrefixed(head, p.method)
	head = appendCount(head, len(names))
	for _, name := range names {
		values := md(name)
		head = appendPrefixed(head, name)
		head = appendCount(head, len(values))
		for _, value := range values {
			head = appendPrefixed(head, value)
		}
	}
	return digest(fingerprintName, head, body), nil
}

// customFingerprint is the fingerprint of a call whose bytes the application gave.
func customFingerprint(method string, b []byte) []byte {
	return digest(customFingerprintName, appendPrefixed(nil, method), b)
}

// fingerprintAlgorithm returns the name of the algorithm that made a fingerprint, "" if it names none.
func fingerprintAlgorithm(fp []byte) string {
	name, _, _ := bytes.Cut(fp, []byte{0})
	if len(name) == len(fp) {
		return ""
	}
	return string(name)
}

// metadataNames puts names of metadata into the one form and order that fingerprints are made of.
func metadataNames(names []string) []string {
	if len(names) == 0 {
		return nil
	}
	lower := make([]string, len(names))
	for i, name := range names {
		lower[i] = strings.ToLower(name)
	}
	slices.Sort(lower)
	return slices.Compact(lower)
}

func digest(algorithm string, parts ...[]byte) []byte {
	h := sha256.New()
	for _, part := range parts {
		h.Write(part)
	}
	fp := make([]byte, 0, len(algorithm)+1+sha256.Size)
	fp = append(fp, algorithm...)
	fp = append(fp, 0)
	return h.Sum(fp)
}

func appendCount(b []byte, n int) []byte { return binary.BigEndian.AppendUint64(b, uint64(n)) }
