package boltstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
)

const lockTimeout = time.Second

// create makes the file of an empty store: complete and durable under another name first, so that a crash leaves no
// half of it, then linked to its own, which fails if somebody else was faster.
func create(path string) error {
	folder := filepath.Dir(path)
	temp, err := os.CreateTemp(folder, filepath.Base(path)+".new-")
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	defer func() { _ = os.Remove(temp.Name()) }()
	if err := temp.Close(); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	failpoint("create.empty")
	db, err := bbolt.Open(temp.Name(), 0o600, &bbolt.Options{PageSize: pageSize})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	if err := errors.Join(db.Update(layout), db.Close()); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	failpoint("create.complete")
	if err := os.Link(temp.Name(), path); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("create: %w", err)
	}
	failpoint("create.linked")
	if err := os.Remove(temp.Name()); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	failpoint("create.unlinked")
	return syncFolder(folder)
}

// openFile opens and locks the file for bbolt, and refuses one that bbolt must not map.
func openFile(path string, flag int, mode os.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flag, mode)
	if err != nil {
		return nil, err
	}
	if err := admit(f, path); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func admit(f *os.File, path string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("it is no regular file")
	}
	if err := lock(f, lockTimeout); err != nil {
		return err
	}
	named, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info, err = f.Stat(); err != nil {
		return err
	}
	if !os.SameFile(info, named) {
		return errors.New("it was replaced by another file while it was opened: open it again")
	}
	if err := readAhead(f, info.Size()); err != nil {
		return err
	}
	return check(f, info.Size())
}

var errLocked = errors.New("it is in use: a store on one file serves one process, and within it is opened once; " +
	"end the other process, or close the other Store, first")
