import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Kafka, logLevel } from "kafkajs";
import { up } from "./quorumlog.mjs";

let cluster;
before(async () => (cluster = await up()));
after(() => cluster.down());

test("orders survive their leader", async () => {
  const kafka = new Kafka({ brokers: cluster.brokers, logLevel: logLevel.NOTHING });
  const admin = kafka.admin();
  await admin.connect();
  const topics = [{ topic: "orders", numPartitions: 1, replicationFactor: 3 }];
  await admin.createTopics({ topics });
  await admin.disconnect();
  const producer = kafka.producer({ idempotent: true });
  await producer.connect();
  for (let order = 0; order < 20; order++) {
    if (order === 10) await cluster.post("/v1/kill", { target: "partition-leader", topic: "orders" });
    const messages = [{ value: `order ${order}` }];
    const [sent] = await producer.send({ topic: "orders", acks: -1, messages });
    assert.equal(Number(sent.baseOffset), order);
  }
  await producer.disconnect();
});
