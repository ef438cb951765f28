package boltstore_test

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

var update = flag.Bool("update", false, "write the golden files")

func goldenRecords() map[string]store.Record {
	at := time.Unix(1_700_000_000, 123).UTC()
	full := store.Record{
		ID: store.ID{0: 1, 31: 32}, Token: store.Token{0: 2, 15: 16}, Owner: [8]byte{3, 4},
		Method: "/shop.Payments/Charge", Fingerprint: []byte("fp1\x00print"), State: store.Done, Attempt: 2,
		First: at, Started: at.Add(time.Second), Ended: at.Add(2 * time.Second), Expires: at.Add(24 * time.Hour),
		Ambiguous: true, Outcome: []byte("outcome"),
	}
	running := full
	running.State, running.Ended, running.Expires = store.Running, time.Time{}, time.Time{}
	running.Ambiguous, running.Outcome = false, nil
	return map[string]store.Record{"record_done_v1": full, "record_running_v1": running}
}

// golden compares bytes with those of a file that never changes: files with them are in use.
func golden(t *testing.T, name string, b []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name+".hex")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(hex.EncodeToString(b)+"\n"), 0o644))
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	want, err := hex.DecodeString(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.Equal(t, want, b)
	return want
}

func TestBytes(t *testing.T) {
	for name, r := range goldenRecords() {
		b, err := boltstore.EncodeRecord(r, 7)
		require.NoError(t, err)
		decoded, incarnation, err := boltstore.DecodeRecord(golden(t, name, b))
		require.NoError(t, err)
		require.EqualValues(t, 7, incarnation)
		require.Equal(t, r, decoded)
	}

	entries := []boltstore.Entry{boltstore.NewEntry(0x0102030405060708, 0), boltstore.ReleasedEntry(7, 99), boltstore.NewEntry(1<<63, 2047)}
	latest, decoded, ok := boltstore.DecodeIndex(golden(t, "index_v1", boltstore.EncodeIndex(99, entries)))
	require.True(t, ok)
	require.EqualValues(t, 99, latest)
	require.Equal(t, entries, decoded)
}

func TestEveryChangedBitOfARecordIsSeen(t *testing.T) {
	b, err := boltstore.EncodeRecord(goldenRecords()["record_done_v1"], 7)
	require.NoError(t, err)
	for bit := range 8 * len(b) {
		b[bit/8] ^= 1 << (bit % 8)
		_, _, err := boltstore.DecodeRecord(b)
		require.ErrorIs(t, err, store.ErrUnreadable)
		b[bit/8] ^= 1 << (bit % 8)
	}
	for n := range b {
		_, _, err := boltstore.DecodeRecord(b[:n])
		require.ErrorIs(t, err, store.ErrUnreadable)
	}
}

func FuzzDecodeRecord(f *testing.F) {
	for _, r := range goldenRecords() {
		b, err := boltstore.EncodeRecord(r, 7)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		boltstore.Seal(b) // else nothing gets past the checksum
		r, incarnation, err := boltstore.DecodeRecord(b)
		if err != nil {
			require.ErrorIs(t, err, store.ErrUnreadable)
			return
		}
		again, err := boltstore.EncodeRecord(r, incarnation)
		require.NoError(t, err)
		decoded, _, err := boltstore.DecodeRecord(again)
		require.NoError(t, err)
		require.Equal(t, r, decoded)
	})
}

func FuzzDecodeIndex(f *testing.F) {
	f.Add(boltstore.EncodeIndex(99, []boltstore.Entry{boltstore.NewEntry(5, 7), boltstore.ReleasedEntry(6, 8)}))
	f.Fuzz(func(t *testing.T, b []byte) {
		boltstore.Seal(b)
		if latest, entries, ok := boltstore.DecodeIndex(b); ok {
			require.Equal(t, b, boltstore.EncodeIndex(latest, entries))
		}
	})
}
