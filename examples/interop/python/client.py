"""Pays for an order at ../../server, with nothing but stock gRPC.

The generated modules are made, from the top of the repository, by

    protoc -I proto -I examples -I examples/interop --python_out=OUT --grpc_python_out=OUT \
        --plugin=protoc-gen-grpc_python=$(command -v grpc_python_plugin) \
        oncerpc/v1/options.proto paymentpb/payment.proto status.proto

and found with PYTHONPATH=OUT.
"""

import argparse
import hashlib
import pathlib
import sys

import grpc

from paymentpb import payment_pb2, payment_pb2_grpc
import status_pb2

DOMAIN = "github.com/oncerpc/oncerpc"

# What to retry, and when: the text of interceptor.ServiceConfig("payment.v1.PaymentService").
SERVICE_CONFIG = pathlib.Path(__file__).parent.parent / "service_config.json"


def key_for(*parts):
    """Makes the key that Go's interceptor.KeyFor makes, so that a client in any language can retry."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:32]


def reason_of(error):
    """Returns why oncerpc refused a call, None if the error is not oncerpc's."""
    for name, value in error.trailing_metadata() or ():
        if name != "grpc-status-details-bin":
            continue
        for detail in status_pb2.Status.FromString(value).details:
            info = status_pb2.ErrorInfo()
            if detail.Unpack(info) and info.domain == DOMAIN:
                return info.reason
    return None


def main():
    flags = argparse.ArgumentParser(description="Pays for an order.")
    flags.add_argument("--addr", default="127.0.0.1:50051")
    flags.add_argument("--order", default="2026-0042")
    flags.add_argument("--card", default="card-1")
    flags.add_argument("--amount", type=int, default=2500, help="in cents")
    args = flags.parse_args()

    options = [("grpc.service_config", SERVICE_CONFIG.read_text())]
    with grpc.insecure_channel(args.addr, options=options) as channel:
        payments = payment_pb2_grpc.PaymentServiceStub(channel)
        request = payment_pb2.ChargeRequest(card=args.card, amount_cents=args.amount)
        # One key per operation. gRPC sends the same metadata with every attempt.
        metadata = [("idempotency-key", key_for("charge", args.order))]
        try:
            charge, call = payments.Charge.with_call(request, metadata=metadata, timeout=30)
        except grpc.RpcError as error:
            sys.exit(f"{error.code().name} {reason_of(error) or ''}: {error.details()}")
        status = dict(call.trailing_metadata()).get("idempotency-status")
        print(f"charge {charge.id} is made ({status})")


if __name__ == "__main__":
    main()
