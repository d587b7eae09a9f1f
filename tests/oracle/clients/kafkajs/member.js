// One member of a group with KafkaJS, as clients/group_member.py has it: settings in the argument, events on stdout.
// KafkaJS has one assignor and no static members. It has no callback before a rebalance: it joins again when it has
// stopped to read, and says so.
const { Kafka, logLevel } = require('kafkajs')

const settings = JSON.parse(process.argv[2])
const POLL_MS = 100
let owned = []

// The monotonic clock of the machine, which Python's time.monotonic_ns() reads, too.
const note = (event, ...values) => process.stdout.write(`${process.hrtime.bigint()} ${event} ${values.join(' ')}\n`)

const end = event => {
  if (owned.length) note(event, ...owned)
  owned = []
}

const main = async () => {
  const kafka = new Kafka({ clientId: 'kafkajs-member', brokers: [settings.bootstrap], logLevel: logLevel.NOTHING })
  const consumer = kafka.consumer({
    groupId: settings.group,
    sessionTimeout: settings.session_ms,
    heartbeatInterval: settings.session_ms / 5,
    rebalanceTimeout: 30000,
    maxWaitTimeInMs: POLL_MS,
    allowAutoTopicCreation: false,
    retry: { initialRetryTime: 100, maxRetryTime: 1000, retries: 100 },
  })
  consumer.on(consumer.events.REBALANCING, () => end('revoked'))
  consumer.on(consumer.events.CRASH, event => {
    note('error', JSON.stringify(String(event.payload.error)))
    end('lost')
  })
  consumer.on(consumer.events.GROUP_JOIN, event => {
    end('lost') // it was no member any more: KafkaJS reports no rebalance then
    owned = [...(event.payload.memberAssignment[settings.topic] || [])].sort((one, other) => one - other)
    note('assigned', ...owned)
  })
  await consumer.connect()
  await consumer.subscribe({ topics: [settings.topic], fromBeginning: true })
  process.stdin.once('data', async () => {
    await consumer.disconnect()
    end('revoked')
    note('closed')
    process.exit()
  })
  await consumer.run({ eachMessage: async ({ partition, message }) => note('read', partition, message.offset) })
}

main()
