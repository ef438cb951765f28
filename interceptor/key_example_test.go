package interceptor_test

import (
	"context"
	"fmt"

	"google.golang.org/grpc/metadata"

	"github.com/oncerpc/oncerpc/interceptor"
)

func ExampleKeyFor() {
	fmt.Println(interceptor.KeyFor("charge", "order-42"))
	fmt.Println(interceptor.KeyFor("refund", "order-42"))
	// Output:
	// 8e8794c4c4480ca8d26d318dd7144d56
	// d1d713c9257fffff0a97d79950896192
}

func ExampleUUIDKey() {
	fmt.Println(interceptor.UUIDKey("01890a5d-ac96-774b-bcce-b302099a8057"))
	fmt.Println(interceptor.UUIDKey("order-42"))
	// Output:
	// <nil>
	// the key must be a UUID, hexadecimal digits as 8-4-4-4-12; this one has 8 characters
}

func ExampleMetadataScope() {
	tenantOf := interceptor.MetadataScope("x-tenant") // which the gateway sets
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("x-tenant", "acme"))
	fmt.Println(tenantOf(ctx))
	// Output: acme <nil>
}
