// Pays for an order at ../../server, with nothing but stock gRPC:
//
//     npm ci && node client.js --order 2026-0042 --amount 2500
'use strict';

const { createHash } = require('node:crypto');
const { readFileSync } = require('node:fs');
const path = require('node:path');
const { parseArgs } = require('node:util');

const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const root = path.join(__dirname, '..', '..', '..');
const proto = protoLoader.loadSync(['paymentpb/payment.proto', 'status.proto'], {
  keepCase: true,
  includeDirs: ['proto', 'examples', 'examples/interop'].map((dir) => path.join(root, dir)),
});
const { PaymentService } = grpc.loadPackageDefinition(proto).payment.v1;

const { values: flags } = parseArgs({
  options: {
    addr: { type: 'string', default: '127.0.0.1:50051' },
    order: { type: 'string', default: '2026-0042' },
    card: { type: 'string', default: 'card-1' },
    amount: { type: 'string', default: '2500' }, // cents
    // What to retry, and when: by default the text of interceptor.ServiceConfig("payment.v1.PaymentService").
    'service-config': { type: 'string', default: path.join(__dirname, '..', 'service_config.json') },
  },
});

// keyFor makes the key that Go's interceptor.KeyFor makes, so that a client in any language can retry.
function keyFor(...parts) {
  const hash = createHash('sha256');
  for (const part of parts) {
    const length = Buffer.alloc(8);
    length.writeBigUInt64BE(BigInt(Buffer.byteLength(part)));
    hash.update(length).update(part);
  }
  return hash.digest('hex').slice(0, 32);
}

// reasonOf returns why oncerpc refused a call, undefined if the error is not oncerpc's.
function reasonOf(error) {
  const [status] = error.metadata.get('grpc-status-details-bin');
  if (!status) return undefined;
  return proto['google.rpc.Status'].deserialize(status).details
    .filter((detail) => detail.type_url.endsWith('/google.rpc.ErrorInfo'))
    .map((detail) => proto['google.rpc.ErrorInfo'].deserialize(detail.value))
    .find((info) => info.domain === 'github.com/oncerpc/oncerpc')?.reason;
}

const payments = new PaymentService(flags.addr, grpc.credentials.createInsecure(), {
  'grpc.service_config': readFileSync(flags['service-config'], 'utf8'),
});

// One key per operation. gRPC sends the same metadata with every attempt.
const metadata = new grpc.Metadata();
metadata.set('idempotency-key', keyFor('charge', flags.order));

const request = { card: flags.card, amount_cents: flags.amount };
let charge;
payments.Charge(request, metadata, { deadline: Date.now() + 30_000 }, (error, response) => {
  if (error) {
    console.error(`${grpc.status[error.code]} ${reasonOf(error) ?? ''}: ${error.details}`);
    process.exitCode = 1;
  }
  charge = response;
}).on('status', ({ code, metadata: trailer }) => {
  payments.close();
  if (code === grpc.status.OK) {
    console.log(`charge ${charge.id} is made (${trailer.get('idempotency-status')[0]})`);
  }
});
