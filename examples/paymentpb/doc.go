// Package paymentpb is the generated code of payment.v1, the one domain of all examples: a service that moves money.
package paymentpb
