package boltstore_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

// refused opens bytes as a file, and requires a clear error that leaves them as they are.
func refused(t *testing.T, b []byte, text string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bad.db")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	_, err := boltstore.Open(path)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, text)
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal(b, after), "the file was changed")
}

// sample is the file of a store with records of every state, as Close or a crash leaves it.
func sample(t *testing.T, clean bool) (b []byte, claims []store.Claim) {
	t.Helper()
	defer boltstore.SmallSegments(20)()
	s, path := newStore(t)
	claims = fill(t, s, 50, done("outcome"))
	claims = append(claims, fill(t, s, 10, store.End{State: store.Released, Retention: time.Hour, Outcome: []byte("outcome")})...)
	for _, c := range claims[50:55] {
		again := again(c)
		claim(t, s, again)
		finish(t, s, again, done("outcome"))
	}
	for range 5 {
		c := newClaim()
		claim(t, s, c)
		finish(t, s, c, store.End{State: store.Abandoned, Outcome: []byte("outcome")})
		claims = append(claims, c)
	}
	if clean {
		require.NoError(t, s.Close())
	}
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b, claims
}

func TestOpen(t *testing.T) {
	t.Run("file_is_for_its_owner_and_nothing_else_is_left", func(t *testing.T) {
		_, path := newStore(t)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		files, err := os.ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		require.Len(t, files, 1)
	})

	t.Run("many_at_once_leave_one_store", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "store.db")
		opened := make(chan *boltstore.Store, 8)
		for range cap(opened) {
			go func() {
				s, _ := boltstore.Open(path)
				opened <- s
			}()
		}
		n := 0
		for range cap(opened) {
			if s := <-opened; s != nil {
				n++
				t.Cleanup(s.Crash)
			}
		}
		require.Equal(t, 1, n)
	})

	t.Run("second_store_in_the_process_is_refused", func(t *testing.T) {
		s, path := newStore(t)
		_, err := boltstore.Open(path)
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, "in use")
		require.NoError(t, s.Close())
		require.NoError(t, open(t, path).Close())
	})

	t.Run("folder_must_exist", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "missing", "store.db")
		_, err := boltstore.Open(path)
		require.ErrorIs(t, err, os.ErrNotExist)
		require.ErrorContains(t, err, path)
	})

	t.Run("file_that_may_not_be_written_is_refused", func(t *testing.T) {
		if os.Getuid() == 0 {
			t.Skip("root may write everything")
		}
		s, path := newStore(t)
		require.NoError(t, s.Close())
		require.NoError(t, os.Chmod(path, 0o400))
		_, err := boltstore.Open(path)
		require.ErrorIs(t, err, os.ErrPermission)
	})

	t.Run("folder_in_place_of_the_file_is_refused", func(t *testing.T) {
		_, err := boltstore.Open(t.TempDir())
		require.Error(t, err)
	})

	t.Run("empty_file_is_refused", func(t *testing.T) { refused(t, nil, "empty") })

	t.Run("file_of_something_else_is_refused", func(t *testing.T) {
		refused(t, []byte("hello"), "no bbolt database")
		refused(t, bytes.Repeat([]byte("SQLite format 3\x00"), 5000), "no bbolt database")
		refused(t, make([]byte, 1<<20), "no bbolt database")
	})

	t.Run("bbolt_file_of_somebody_else_is_refused", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "other.db")
		edit(t, path, func(tx *bbolt.Tx) error {
			_, err := tx.CreateBucket([]byte("orders"))
			return err
		})
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		refused(t, b, "no store")
	})

	t.Run("newer_layout_is_refused", func(t *testing.T) {
		s, path := newStore(t)
		require.NoError(t, s.Close())
		edit(t, path, func(tx *bbolt.Tx) error {
			return boltstore.PutNumber(tx.Bucket([]byte("oncerpc")).Bucket([]byte("meta")), []byte("version"), 7)
		})
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		refused(t, b, "layout version 7, this binary knows versions up to 1")
	})

	t.Run("damaged_slot_is_refused", func(t *testing.T) {
		s, path := newStore(t)
		claim(t, s, newClaim())
		s.Crash()
		edit(t, path, func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte("oncerpc")).Bucket([]byte("running")).Put([]byte{0, 0, 0, 0}, []byte("bad"))
		})
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		refused(t, b, "slot 0")
	})

	t.Run("file_that_hides_a_record_or_a_claim_is_refused", func(t *testing.T) {
		for _, sealed := range []bool{false, true} {
			if sealed {
				defer boltstore.SmallSegments(1)()
			}
			for bucket, hide := range map[string]func(b *bbolt.Bucket) error{
				"running": func(b *bbolt.Bucket) error { return b.Put([]byte{0, 0, 0, 0}, []byte{0}) },
				"segments": func(b *bbolt.Bucket) error {
					name, _ := b.Cursor().First()
					segment := b.Bucket(name)
					k, _ := segment.Cursor().Seek([]byte{0, 0})
					return errors.Join(segment.Delete(k), segment.Delete([]byte{0xff}))
				},
			} {
				s, path := newStore(t)
				running, ended := newClaim(), newClaim()
				claim(t, s, running)
				claim(t, s, ended)
				finish(t, s, ended, done("outcome"))
				s.Crash()
				edit(t, path, func(tx *bbolt.Tx) error { return hide(tx.Bucket([]byte("oncerpc")).Bucket([]byte(bucket))) })
				b, err := os.ReadFile(path)
				require.NoError(t, err)
				refused(t, b, "of 1 records and 1 claims it shows")
			}
		}
	})

	t.Run("key_that_nobody_wrote_is_refused", func(t *testing.T) {
		s, path := newStore(t)
		ended := newClaim()
		claim(t, s, ended)
		finish(t, s, ended, done("outcome"))
		s.Crash()
		edit(t, path, func(tx *bbolt.Tx) error {
			segments := tx.Bucket([]byte("oncerpc")).Bucket([]byte("segments"))
			name, _ := segments.Cursor().First()
			return segments.Bucket(name).Put([]byte("\x00\x00longer than a key"), []byte("x"))
		})
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		refused(t, b, "a key cannot be read")
	})

	t.Run("truncated_file_is_refused", func(t *testing.T) {
		for _, clean := range []bool{true, false} {
			b, _ := sample(t, clean)
			used := len(bytes.TrimRight(b, "\x00"))
			for _, n := range []int{1, 79, 4096, 8191, 8192, 12000, 16384, 24576, 32768, used / 4, used / 2, used - 8192} {
				refused(t, b[:n], "the file is")
			}
		}
	})

	t.Run("file_with_zeros_for_an_end_is_refused", func(t *testing.T) {
		b, _ := sample(t, false)
		used := len(bytes.TrimRight(b, "\x00"))
		for _, n := range []int{8192, 16384, 32768, used / 4, used / 2} {
			cut := bytes.Clone(b)
			clear(cut[n:])
			path := filepath.Join(t.TempDir(), "bad.db")
			require.NoError(t, os.WriteFile(path, cut, 0o600))
			_, err := boltstore.Open(path)
			require.ErrorContains(t, err, "the file is damaged")
		}
	})
}

func TestDamage(t *testing.T) {
	ctx := context.Background()

	t.Run("record_with_a_changed_byte_is_unreadable_and_never_absent", func(t *testing.T) {
		for _, sealed := range []bool{false, true} {
			if sealed {
				defer boltstore.SmallSegments(1)()
			}
			s, path := newStore(t)
			c, other := newClaim(), newClaim()
			claim(t, s, c)
			finish(t, s, c, done("the outcome of it"))
			claim(t, s, other)
			finish(t, s, other, done("other"))
			require.NoError(t, s.Close())
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			for _, part := range [][]byte{c.ID[:], []byte("the outcome of it")} {
				bad := bytes.Clone(b)
				at := bytes.Index(bad, part)
				for ; at >= 0; at = bytes.Index(bad, part) {
					bad[at+3] ^= 0x10
				}
				path := filepath.Join(t.TempDir(), "bad.db")
				require.NoError(t, os.WriteFile(path, bad, 0o600))
				s := open(t, path)
				_, err := s.Get(ctx, c.ID)
				require.ErrorIs(t, err, store.ErrUnreadable)
				_, err = s.Begin(ctx, again(c))
				require.ErrorIs(t, err, store.ErrUnreadable)
				require.ErrorIs(t, s.Finish(ctx, c.ID, c.Token, done("")), store.ErrUnreadable)
				require.Equal(t, "other", string(get(t, s, other.ID).Outcome))
				var bads, goods int
				for _, err := range s.List(ctx, store.Query{}) {
					if errors.Is(err, store.ErrUnreadable) {
						bads++
					} else {
						goods++
					}
				}
				require.Equal(t, [2]int{1, 1}, [2]int{bads, goods})
				require.NoError(t, s.Close())
			}
		}
	})

	t.Run("any_changed_byte_is_an_error_or_does_no_harm", func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		const flips = 150
		refusals, unreadable := 0, 0
		for _, clean := range []bool{true, false} {
			b, claims := sample(t, clean)
			used := bytes.TrimRight(b, "\x00")
			for range flips {
				bad := bytes.Clone(used)
				bad[2*8192+random.IntN(len(bad)-2*8192)] ^= 1 << random.IntN(8)
				path := filepath.Join(t.TempDir(), "bad.db")
				require.NoError(t, os.WriteFile(path, bad, 0o600))
				require.NoError(t, os.Truncate(path, int64(len(b))))
				s, err := boltstore.Open(path)
				if err != nil {
					after, err := os.ReadFile(path)
					require.NoError(t, err)
					require.True(t, bytes.Equal(bad, after[:len(bad)]))
					refusals++
					continue
				}
				for _, c := range claims {
					r, err := s.Get(ctx, c.ID)
					if err != nil {
						require.ErrorIs(t, err, store.ErrUnreadable)
						unreadable++
						continue
					}
					require.Equal(t, "outcome", string(r.Outcome))
				}
				s.Crash()
			}
		}
		t.Log(refusals, "refused,", unreadable, "records unreadable")
	})
}
