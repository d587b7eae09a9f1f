import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The worker of clients/transform.py with the Java clients: BOOTSTRAP NAME SOURCE TARGET. */
public class TransformClient {
  static void say(String word) throws Exception {
    System.out.write((word + "\n").getBytes(StandardCharsets.UTF_8));
    System.out.flush();
  }

  public static void main(String[] arguments) throws Exception {
    String name = arguments[1];
    String source = arguments[2];
    String target = arguments[3];
    Map<String, Object> reading = new HashMap<>();
    reading.put("bootstrap.servers", arguments[0]);
    reading.put("group.id", name);
    reading.put("group.instance.id", name);
    reading.put("session.timeout.ms", 30_000);
    reading.put("isolation.level", "read_committed");
    reading.put("auto.offset.reset", "earliest");
    reading.put("enable.auto.commit", false);
    reading.put("max.poll.records", 7);
    Map<String, Object> writing = new HashMap<>();
    writing.put("bootstrap.servers", arguments[0]);
    writing.put("transactional.id", name);
    writing.put("transaction.timeout.ms", 20_000);
    writing.put("max.block.ms", 20_000);
    KafkaConsumer<String, String> consumer =
        new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
    KafkaProducer<String, String> producer = new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer());
    try {
      producer.initTransactions();
      consumer.subscribe(List.of(source));
      while (true) {
        ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(300));
        if (records.isEmpty()) {
          continue;
        }
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (ConsumerRecord<String, String> record : records) {
          producer.send(new ProducerRecord<>(target, record.partition(), null, "t-" + record.value()));
          offsets.put(new TopicPartition(source, record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        producer.flush();
        say("written");
        Thread.sleep(100);
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        producer.commitTransaction();
        say("committed");
      }
    } catch (Exception error) {
      error.printStackTrace();
      Runtime.getRuntime().halt(1);
    }
  }
}
