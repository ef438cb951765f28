// Package examples_test holds README.md to the programs beside it.
package examples_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The code in README.md is the text of files that compile, the names in it exist, and its output is what the program
// wrote.
func TestREADME(t *testing.T) {
	blocks := fenced(t, filepath.Join("..", "README.md"))

	t.Run("go_blocks_are_the_text_of_examples", func(t *testing.T) {
		requireQuoted(t, blocks["go"], sources(t, ".go"))
	})

	t.Run("proto_blocks_are_the_text_of_examples", func(t *testing.T) {
		requireQuoted(t, blocks["proto"], sources(t, ".proto"))
	})

	t.Run("names_in_the_text_are_exported", func(t *testing.T) {
		text, err := os.ReadFile(filepath.Join("..", "README.md"))
		require.NoError(t, err)
		for _, m := range qualified.FindAllStringSubmatch(string(text), -1) {
			require.True(t, declares(t, packages[m[1]], m[2]), "no such name: %s.%s", m[1], m[2])
		}
	})

	t.Run("output_is_what_quickstart_wrote", func(t *testing.T) {
		account, err := os.ReadFile(filepath.Join("quickstart", "testdata", "account.txt"))
		require.NoError(t, err)
		require.Contains(t, strings.Join(blocks["console"], "\n"), string(account))
	})
}

var fence = regexp.MustCompile("(?s)```([a-z]+)\n(.*?)```")

// fenced returns the code blocks of a Markdown file by language.
func fenced(t *testing.T, path string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	blocks := map[string][]string{}
	for _, m := range fence.FindAllStringSubmatch(string(text), -1) {
		blocks[m[1]] = append(blocks[m[1]], m[2])
	}
	return blocks
}

// sources returns the files under examples with the suffix, and the interceptor's own examples, as one line each.
func sources(t *testing.T, suffix string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "interceptor", "example*_test"+suffix))
	require.NoError(t, err)
	require.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, suffix) {
			files = append(files, path)
		}
		return err
	}))
	lines := map[string]string{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		lines[path] = oneLine(string(text))
	}
	return lines
}

func requireQuoted(t *testing.T, blocks []string, sources map[string]string) {
	t.Helper()
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		require.True(t, quoted(block, sources), "in no example:\n%s", block)
	}
}

func quoted(block string, sources map[string]string) bool {
	for _, source := range sources {
		if strings.Contains(source, oneLine(block)) {
			return true
		}
	}
	return false
}

var qualified = regexp.MustCompile(`\b(interceptor|boltstore|store)\.([A-Z]\w+)`)

var packages = map[string]string{
	"interceptor": filepath.Join("..", "interceptor"),
	"boltstore":   filepath.Join("..", "store", "boltstore"),
	"store":       filepath.Join("..", "store"),
}

// declares reports whether a file in dir has name at its top level, alone or in a group.
func declares(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	declaration := regexp.MustCompile(`(?m)^(func |type |var |const |\t)` + name + `\b`)
	for _, path := range files {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		if declaration.Match(text) {
			return true
		}
	}
	return false
}

// oneLine makes indentation and line breaks count for nothing.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
