// Package oncerpcv1 is the generated code of the proto package oncerpc.v1:
//
//   - options.proto: how a schema says what its methods do with idempotency keys. [MethodPolicy] is also what
//     interceptor.WithPolicy takes.
//   - reason.proto: the [Reason] on errors that oncerpc itself makes.
//   - record.proto: what is stored of an outcome. It is for stores and tools, not for applications.
//
// Fields are added and never renumbered: what is on disk, and what linked schemas say, stays readable.
package oncerpcv1
