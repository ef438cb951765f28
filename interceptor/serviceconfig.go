package interceptor

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

// ServiceConfig returns a gRPC service config (gRFC A2 and A6) that makes stock clients, of any language, retry guarded
// methods rightly: UNAVAILABLE, which a lost answer ends in, and ABORTED, which says among others that the call with the
// key is still running, with at most 5 attempts. What must not be retried the server marks with a
// grpc-retry-pushback-ms that they obey. It is the same text for the same names.
//
// A name is a method, "/package.Service/Method", or a service, "package.Service", which the generated code has as
// Service_ServiceDesc.ServiceName: all its methods whose schema says key: REQUIRED. Stock clients do not make keys. The caller has to put one into the metadata [MetadataKey], once for all
// attempts; a call without it is retried just the same, which is harmless only where the server refuses it. So a method
// with optional keys has to be named by itself, for clients that always send one.
//
// The throttle allows for bursts: it stops retries once 50 of 100 tokens are used up. A failed attempt with such a code
// costs one token, whether it may be retried or not, and a success brings 0.1 back.
//
// Give it to grpc.WithDefaultServiceConfig, to the channel argument grpc.service_config, or to a name resolver. A
// [Client] needs none of it, and is no stock client: it reads the reasons of errors, makes keys and waits longer.
//
// It panics if there is no name, a name is not linked into this program, a method streams or does not honour keys, or
// nothing in a service requires them.
func ServiceConfig(names ...string) string {
	return serviceConfig(names, methodConfig{Retry: &retryPolicy{
		MaxAttempts:    5,
		InitialBackoff: "0.1s",
		MaxBackoff:     "5s",
		Multiplier:     2,
		Codes:          retryableCodes,
	}})
}

// HedgingServiceConfig is [ServiceConfig] for clients that do not wait for an answer to be lost: each time delay passes
// without one they send the call again beside the first, three times in all, and take the first answer. The later ones
// join the run of the first. While one attempt is told that the call is running or the server unavailable, the others
// go on, since those codes are among the nonFatalStatusCodes.
//
// gRPC for Java and for Node.js hedge; gRPC for Go, C++ and Python do not, and send such calls once.
//
// It panics as ServiceConfig does, and if delay is not positive.
func HedgingServiceConfig(delay time.Duration, names ...string) string {
	if delay <= 0 {
		panic("oncerpc: HedgingServiceConfig: delay is not positive")
	}
	return serviceConfig(names, methodConfig{Hedging: &hedgingPolicy{
		MaxAttempts: 3,
		Delay:       jsonSeconds(delay),
		Codes:       retryableCodes,
	}})
}

var retryableCodes = []string{"UNAVAILABLE", "ABORTED"}

// The parts of a service config, as its JSON names them.
type (
	methodConfig struct {
		Names   []methodName   `json:"name"`
		Retry   *retryPolicy   `json:"retryPolicy,omitempty"`
		Hedging *hedgingPolicy `json:"hedgingPolicy,omitempty"`
	}
	methodName struct {
		Service string `json:"service"`
		Method  string `json:"method"`
	}
	retryPolicy struct {
		MaxAttempts    int      `json:"maxAttempts"`
		InitialBackoff string   `json:"initialBackoff"`
		MaxBackoff     string   `json:"maxBackoff"`
		Multiplier     float64  `json:"backoffMultiplier"`
		Codes          []string `json:"retryableStatusCodes"`
	}
	hedgingPolicy struct {
		MaxAttempts int      `json:"maxAttempts"`
		Delay       string   `json:"hedgingDelay"`
		Codes       []string `json:"nonFatalStatusCodes"`
	}
	retryThrottling struct {
		MaxTokens  int     `json:"maxTokens"`
		TokenRatio float64 `json:"tokenRatio"`
	}
)

func serviceConfig(names []string, methods methodConfig) string {
	if len(names) == 0 {
		panic("oncerpc: service config: no method is named")
	}
	seen := make(map[methodName]bool)
	for _, name := range names {
		of, err := guardedMethods(name)
		if err != nil {
			panic(fmt.Sprintf("oncerpc: service config: %s: %v", name, err))
		}
		for _, m := range of {
			if !seen[m] {
				methods.Names = append(methods.Names, m)
			}
			seen[m] = true
		}
	}
	text, err := json.MarshalIndent(struct {
		Methods    []methodConfig  `json:"methodConfig"`
		Throttling retryThrottling `json:"retryThrottling"`
	}{[]methodConfig{methods}, retryThrottling{MaxTokens: 100, TokenRatio: 0.1}}, "", "  ")
	if err != nil {
		panic("oncerpc: service config: " + err.Error())
	}
	return string(text)
}

// guardedMethods returns the methods that a name given to ServiceConfig stands for.
func guardedMethods(name string) ([]methodName, error) {
	policies, err := newPolicies(commonOptions{})
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(name, "/") {
		md := linkedMethod(name)
		if md == nil {
			return nil, errors.New("no such method is linked into this program; the name has the form /package.Service/Method")
		}
		p, err := policies.of(name)
		switch {
		case err != nil:
			return nil, err
		case p.streaming:
			return nil, errors.New("a streaming method cannot have keys")
		case p.key == oncerpcv1.MethodPolicy_IGNORED:
			return nil, errors.New("its keys are ignored")
		}
		return []methodName{nameOf(md)}, nil
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	service, ok := d.(protoreflect.ServiceDescriptor)
	if err != nil || !ok {
		return nil, errors.New("no such service is linked into this program; the name has the form package.Service")
	}
	var required []methodName
	for i := range service.Methods().Len() {
		m := nameOf(service.Methods().Get(i))
		p, err := policies.of("/" + m.Service + "/" + m.Method)
		if err == nil && !p.streaming && p.key == oncerpcv1.MethodPolicy_REQUIRED {
			required = append(required, m)
		}
	}
	if len(required) == 0 {
		return nil, errors.New("none of its methods has a schema that says key: REQUIRED; name the methods")
	}
	return required, nil
}

// jsonSeconds writes d as the JSON of a google.protobuf.Duration.
func jsonSeconds(d time.Duration) string {
	digits := strings.TrimRight(strconv.FormatFloat(d.Seconds(), 'f', 9, 64), "0")
	return strings.TrimSuffix(digits, ".") + "s"
}

func nameOf(md protoreflect.MethodDescriptor) methodName {
	return methodName{Service: string(md.Parent().FullName()), Method: string(md.Name())}
}
