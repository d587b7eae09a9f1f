// One member of a share group, as a process. Arguments: bootstrap group topic mode acquire-mode lock-ms.
//
// It prints a line for each event, with the monotonic time in ns: `got P OFFSET COUNT`, `acking P OFFSET TYPE` before an
// acknowledgement may be sent, `acked P OFFSET TYPE` or `failed P OFFSET TYPE` when its result is known, `slept` after it has
// held records, `error TEXT`, `closed`. A line on stdin ends it, as a client ends that leaves its group.
//
// In explicit mode the value of a record says what is done with it:
//   accept   accepted
//   reject   rejected
//   release  released at the first delivery, then accepted
//   poison   always released
//   hold     accepted after its lock has expired at the first delivery, then accepted at once
//   renew    held for two times 0.6 of the lock duration, with a renewal in between, then accepted
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class LiveShare {
    static final Map<String, AcknowledgeType> PENDING = new HashMap<>();
    static final Set<String> RENEWED = new HashSet<>();
    static volatile boolean stopped = false;
    static long lockMs;

    static void note(String event) {
        System.out.println(System.nanoTime() + " " + event);
        System.out.flush();
    }

    static String key(int partition, long offset) {
        return partition + " " + offset;
    }

    static void acknowledged(Map<TopicIdPartition, Set<Long>> offsets, Exception error) {
        if (error != null) note("error " + error);
        offsets.forEach((partition, found) -> {
            for (long offset : found) {
                String key = key(partition.partition(), offset);
                AcknowledgeType type = PENDING.get(key);
                note((error == null ? "acked " : "failed ") + key + " " + (type == null ? 0 : type.id));
            }
        });
    }

    static void acknowledge(KafkaShareConsumer<String, String> consumer, ConsumerRecord<String, String> record, AcknowledgeType type) {
        begin(record, type);
        consumer.acknowledge(record, type);
    }

    static void begin(ConsumerRecord<String, String> record, AcknowledgeType type) {
        String key = key(record.partition(), record.offset());
        PENDING.put(key, type);
        note("acking " + key + " " + type.id);
    }

    static void sleep(double locks) throws InterruptedException {
        Thread.sleep((long) (lockMs * locks));
        note("slept");
    }

    static void explicitly(KafkaShareConsumer<String, String> consumer, ConsumerRecords<String, String> records) throws InterruptedException {
        List<ConsumerRecord<String, String>> held = new ArrayList<>(), renewed = new ArrayList<>();
        for (var record : records) {
            boolean isFirst = record.deliveryCount().orElse((short) 1) == 1;
            switch (record.value()) {
                case "reject" -> acknowledge(consumer, record, AcknowledgeType.REJECT);
                case "release" -> acknowledge(consumer, record, isFirst ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
                case "poison" -> acknowledge(consumer, record, AcknowledgeType.RELEASE);
                case "hold" -> { if (isFirst) held.add(record); else acknowledge(consumer, record, AcknowledgeType.ACCEPT); }
                case "renew" -> renewed.add(record);
                default -> acknowledge(consumer, record, AcknowledgeType.ACCEPT);
            }
        }
        consumer.commitSync(Duration.ofSeconds(10));
        if (!renewed.isEmpty()) {
            sleep(0.6);
            for (var record : renewed) {
                boolean isRenewed = RENEWED.remove(key(record.partition(), record.offset()));
                if (!isRenewed) RENEWED.add(key(record.partition(), record.offset()));
                acknowledge(consumer, record, isRenewed ? AcknowledgeType.ACCEPT : AcknowledgeType.RENEW);
            }
            consumer.commitSync(Duration.ofSeconds(10));
        }
        if (!held.isEmpty()) {
            sleep(1.3);
            for (var record : held) acknowledge(consumer, record, AcknowledgeType.ACCEPT);
            consumer.commitSync(Duration.ofSeconds(10));
        }
    }

    public static void main(String[] args) throws Exception {
        var config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("group.id", args[1]);
        config.put("share.acknowledgement.mode", args[3]);
        config.put("share.acquire.mode", args[4]);
        config.put("max.poll.records", 20);
        lockMs = Long.parseLong(args[5]);
        var waiting = new Thread(() -> {
            try { System.in.read(); } catch (java.io.IOException error) { /* it ends, too */ }
            stopped = true;
        });
        waiting.setDaemon(true);
        waiting.start();
        boolean isExplicit = args[3].equals("explicit");
        try (var consumer = new KafkaShareConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            consumer.setAcknowledgementCommitCallback(LiveShare::acknowledged);
            consumer.subscribe(List.of(args[2]));
            ConsumerRecords<String, String> records = ConsumerRecords.empty();
            while (!stopped) {
                if (!isExplicit) for (var record : records) begin(record, AcknowledgeType.ACCEPT);
                try {
                    records = consumer.poll(Duration.ofMillis(100));
                    for (var record : records) note("got " + key(record.partition(), record.offset()) + " " + record.deliveryCount().orElse((short) 0));
                    if (isExplicit) explicitly(consumer, records);
                } catch (KafkaException error) {
                    note("error " + error);
                    records = ConsumerRecords.empty();
                }
            }
            if (!isExplicit) for (var record : records) begin(record, AcknowledgeType.ACCEPT);
        }
        note("closed");
        System.exit(0);
    }
}
