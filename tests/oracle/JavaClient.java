import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Drives the Java clients as clients/plan.py says: steps on stdin, answers on stdout. Errors have the names of classes. */
public class JavaClient {
  static final int MAX_REQUEST_BYTES = 10_000_000;
  static final ObjectMapper MAPPER = new ObjectMapper();

  public static void main(String[] arguments) throws Exception {
    System.setOut(System.err);
    Answers.print(
        Answers.lines(System.in), line -> MAPPER.writeValueAsString(answer(arguments[0], MAPPER.readTree(line))));
    System.exit(0);
  }

  static ObjectNode answer(String bootstrap, JsonNode step) {
    try {
      switch (step.get("do").asText()) {
        case "produce":
          return produce(bootstrap, step);
        case "consume":
          return consume(bootstrap, step);
        case "create":
          return create(bootstrap, step);
        default:
          return MAPPER.createObjectNode().put("unable", "it has no " + step.get("do").asText());
      }
    } catch (Exception thrown) {
      Throwable error = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
      return MAPPER.createObjectNode().put("error", error.getClass().getSimpleName()).put("message", String.valueOf(error));
    }
  }

  static ObjectNode produce(String bootstrap, JsonNode step) throws Exception {
    Map<String, Object> settings = new HashMap<>();
    settings.put("bootstrap.servers", bootstrap);
    settings.put("acks", step.get("acks").asText());
    settings.put("enable.idempotence", step.get("idempotent").asBoolean());
    settings.put("compression.type", step.get("codec").asText());
    settings.put("linger.ms", 20);
    settings.put("max.request.size", MAX_REQUEST_BYTES);
    settings.put("max.block.ms", clientMs(step));
    settings.put("request.timeout.ms", clientMs(step));
    settings.put("delivery.timeout.ms", clientMs(step) + 1_000);
    List<Future<RecordMetadata>> sent = new ArrayList<>();
    ArrayNode offsets = MAPPER.createArrayNode();
    try (KafkaProducer<byte[], byte[]> producer =
        new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
      for (JsonNode record : step.get("records")) {
        List<Header> headers = new ArrayList<>();
        record.get(3).forEach(header -> headers.add(new RecordHeader(header.get(0).asText(), decode(header.get(1)))));
        sent.add(
            producer.send(
                new ProducerRecord<>(
                    step.get("topic").asText(),
                    step.get("partition").asInt(),
                    record.get(2).asLong(),
                    decode(record.get(0)),
                    decode(record.get(1)),
                    headers)));
      }
      producer.flush();
      for (Future<RecordMetadata> one : sent) {
        offsets.add(one.get().offset());
      }
    }
    return MAPPER.createObjectNode().set("offsets", offsets);
  }

  static ObjectNode consume(String bootstrap, JsonNode step) {
    Map<String, Object> settings = new HashMap<>();
    settings.put("bootstrap.servers", bootstrap);
    settings.put("auto.offset.reset", "none");
    settings.put("enable.auto.commit", false);
    settings.put("fetch.max.wait.ms", 100); // its close waits for the last fetch
    ArrayNode records = MAPPER.createArrayNode();
    try (KafkaConsumer<byte[], byte[]> consumer =
        new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      TopicPartition partition = new TopicPartition(step.get("topic").asText(), step.get("partition").asInt());
      consumer.assign(List.of(partition));
      consumer.seek(partition, step.get("offset").asLong());
      long until = System.currentTimeMillis() + clientMs(step);
      while (records.size() < step.get("count").asInt()) {
        if (System.currentTimeMillis() > until) {
          return MAPPER.createObjectNode().put("error", "TIMED_OUT").put("message", records.size() + " records came");
        }
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
          ArrayNode one = records.addArray().add(record.offset()).add(record.timestamp());
          one.add(encode(record.key())).add(encode(record.value()));
          ArrayNode headers = one.addArray();
          record.headers().forEach(header -> headers.addArray().add(header.key()).add(encode(header.value())));
        }
      }
    }
    return MAPPER.createObjectNode().set("records", records);
  }

  static ObjectNode create(String bootstrap, JsonNode step) throws Exception {
    Map<String, String> configs = new HashMap<>();
    step.get("configs").fields().forEachRemaining(entry -> configs.put(entry.getKey(), entry.getValue().asText()));
    NewTopic topic =
        new NewTopic(
                step.get("topic").asText(),
                Optional.of(step.get("partitions").asInt()),
                Optional.of((short) step.get("replication_factor").asInt()))
            .configs(configs);
    Map<String, Object> settings = new HashMap<>();
    settings.put("bootstrap.servers", bootstrap);
    settings.put("request.timeout.ms", clientMs(step));
    settings.put("default.api.timeout.ms", clientMs(step));
    try (Admin admin = Admin.create(settings)) {
      admin.createTopics(List.of(topic)).all().get();
    }
    return MAPPER.createObjectNode();
  }

  static int clientMs(JsonNode step) {
    return step.get("seconds").asInt() * 1000;
  }

  static byte[] decode(JsonNode text) {
    return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
  }

  static String encode(byte[] data) {
    return data == null ? null : Base64.getEncoder().encodeToString(data);
  }
}
