// Drives KafkaJS as plan.py says: steps on stdin, answers on stdout. It only produces: its consumer needs groups.
// Errors have the names of Kafka's error codes where the broker gave one, else of KafkaJS's classes.
const readline = require('readline')
const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = require('kafkajs')

CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')

const REQUEST_MS = 10000
const kafka = new Kafka({
  clientId: 'kafkajs-driver',
  brokers: [process.argv[2]],
  logLevel: logLevel.NOTHING,
  requestTimeout: REQUEST_MS,
  retry: { initialRetryTime: 100, retries: 3 },
})
const codecs = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy }
const acks = { 0: 0, 1: 1, all: -1 }
const decode = text => (text === null ? null : Buffer.from(text, 'base64'))

class UnableError extends Error {}

/** KafkaJS takes an object of headers: the values of one name are a list. A header without value it cannot send. */
const headersOf = listed => {
  const headers = {}
  for (const [name, value] of listed) {
    headers[name] = [...(headers[name] || []), decode(value)]
  }
  return headers
}

const produce = async step => {
  if (!(step.codec in codecs)) throw new UnableError(`it has no ${step.codec} of its own`)
  const producer = kafka.producer({ idempotent: step.idempotent, allowAutoTopicCreation: false })
  await producer.connect()
  try {
    const offsets = []
    // Two requests, so that there is more than one batch.
    const half = Math.ceil(step.records.length / 2)
    for (const part of [step.records.slice(0, half), step.records.slice(half)]) {
      if (part.length === 0) continue
      const messages = part.map(([key, value, timestamp, headers]) => ({
        key: decode(key),
        value: decode(value),
        timestamp: String(timestamp),
        headers: headersOf(headers),
        partition: step.partition,
      }))
      const compression = codecs[step.codec]
      const done = await producer.send({ topic: step.topic, acks: acks[step.acks], compression, messages })
      const base = done && done.length ? Number(done[0].baseOffset) : -1
      part.forEach((_, index) => offsets.push(base < 0 ? -1 : base + index))
    }
    return { offsets }
  } finally {
    await producer.disconnect()
  }
}

const create = async step => {
  const admin = kafka.admin({ retry: { retries: 0 } })
  await admin.connect()
  try {
    const configEntries = Object.entries(step.configs).map(([name, value]) => ({ name, value }))
    const topic = {
      topic: step.topic,
      numPartitions: step.partitions,
      replicationFactor: step.replication_factor,
      configEntries,
    }
    // KafkaJS answers false, not an error, for a topic that exists.
    const created = await admin.createTopics({ topics: [topic], timeout: REQUEST_MS })
    return created ? {} : { error: 'TOPIC_ALREADY_EXISTS', message: 'createTopics answered false' }
  } finally {
    await admin.disconnect()
  }
}

const handlers = { produce, create }

const answer = async step => {
  try {
    if (!(step.do in handlers)) throw new UnableError(`it has no ${step.do} by assignment`)
    return await handlers[step.do](step)
  } catch (thrown) {
    if (thrown instanceof UnableError) return { unable: thrown.message }
    let error = thrown
    while (!error.type && (error.cause || (error.errors && error.errors.length))) error = error.cause || error.errors[0]
    return { error: error.type || error.name, message: String(error.message) }
  }
}

const main = async () => {
  for await (const line of readline.createInterface({ input: process.stdin, crlfDelay: Infinity })) {
    process.stdout.write(JSON.stringify(await answer(JSON.parse(line))) + '\n')
  }
  process.exitCode = 0
}

main().then(() => process.exit())
