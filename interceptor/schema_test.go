package interceptor

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// schema builds a file at run time from a FileDescriptorProto in text form.
func schema(t testing.TB, text string) protoreflect.FileDescriptor {
	t.Helper()
	return build(t, parseSchema(t, text))
}

func parseSchema(t testing.TB, text string) *descriptorpb.FileDescriptorProto {
	t.Helper()
	file := &descriptorpb.FileDescriptorProto{}
	require.NoError(t, prototext.Unmarshal([]byte(text), file))
	return file
}

func build(t testing.TB, file *descriptorpb.FileDescriptorProto) protoreflect.FileDescriptor {
	t.Helper()
	fd, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	require.NoError(t, err)
	return fd
}

// link makes a file known to the whole test binary, as importing its generated code would. Each name can be linked
// once.
func link(t testing.TB, fd protoreflect.FileDescriptor) {
	t.Helper()
	if _, err := protoregistry.GlobalFiles.FindFileByPath(fd.Path()); err == nil {
		return // the test runs again
	}
	require.NoError(t, protoregistry.GlobalFiles.RegisterFile(fd))
}
