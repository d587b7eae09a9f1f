import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** One member of a group with the Java consumer, as clients/group_member.py has it: settings in the argument, events on stdout. */
public class GroupMember {
  static final Duration POLL = Duration.ofMillis(100);
  static final Map<String, Class<?>> ASSIGNORS =
      Map.of(
          "range", RangeAssignor.class,
          "roundrobin", RoundRobinAssignor.class,
          "sticky", StickyAssignor.class,
          "cooperative-sticky", CooperativeStickyAssignor.class);
  static volatile boolean isStopped;

  public static void main(String[] arguments) throws Exception {
    JsonNode settings = new ObjectMapper().readTree(arguments[0]);
    Thread end =
        new Thread(
            () -> {
              try {
                while (System.in.read() >= 0 && !isStopped) {
                  isStopped = true;
                }
              } catch (java.io.IOException error) {
                throw new IllegalStateException(error);
              }
            });
    end.setDaemon(true);
    end.start();
    try (KafkaConsumer<byte[], byte[]> consumer =
        new KafkaConsumer<>(properties(settings), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      consumer.subscribe(List.of(settings.get("topic").asText()), new Listener());
      while (!isStopped) {
        try {
          ConsumerRecords<byte[], byte[]> read = consumer.poll(POLL);
          for (ConsumerRecord<byte[], byte[]> record : read) {
            note("read", record.partition() + " " + record.offset());
          }
          if (!read.isEmpty()) {
            consumer.commitSync();
          }
        } catch (KafkaException error) {
          note("error", error.toString());
        }
      }
    }
    note("closed", "");
    System.exit(0);
  }

  static Map<String, Object> properties(JsonNode settings) {
    Map<String, Object> properties = new HashMap<>();
    properties.put("bootstrap.servers", settings.get("bootstrap").asText());
    properties.put("group.id", settings.get("group").asText());
    properties.put("enable.auto.commit", false);
    properties.put("auto.offset.reset", "earliest");
    if (settings.path("protocol").asText().equals("consumer")) {
      properties.put("group.protocol", "consumer");
      if (settings.has("assignor")) {
        properties.put("group.remote.assignor", settings.get("assignor").asText());
      }
    } else {
      properties.put("session.timeout.ms", settings.get("session_ms").asInt());
      properties.put("heartbeat.interval.ms", settings.get("session_ms").asInt() / 5);
      properties.put("partition.assignment.strategy", ASSIGNORS.get(settings.path("assignor").asText("range")).getName());
    }
    if (settings.has("instance")) {
      properties.put("group.instance.id", settings.get("instance").asText());
    }
    return properties;
  }

  /** Prints an event; nanoTime() is the monotonic clock of the machine, which Python's time.monotonic_ns() reads, too. */
  static synchronized void note(String event, String values) {
    System.out.println(System.nanoTime() + " " + event + " " + values);
  }

  static final class Listener implements ConsumerRebalanceListener {
    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
      notePartitions("assigned", assigned);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
      notePartitions("revoked", revoked);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> lost) {
      notePartitions("lost", lost);
    }

    static void notePartitions(String event, Collection<TopicPartition> found) {
      note(event, found.stream().map(one -> "" + one.partition()).sorted().collect(Collectors.joining(" ")));
    }
  }
}
