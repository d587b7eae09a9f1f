import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.StreamsGroupDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Counts words with group.protocol=streams: two instances with standby tasks, of which one is stopped between two halves of the
 * input. Arguments: bootstrap servers, application id, processing guarantee, a directory. Prints what it saw, a line for each.
 */
public class StreamsWordCount {
  static final int LINES = 200;
  static final long LIMIT_MS = 60_000;

  public static void main(String[] arguments) throws Exception {
    String bootstrap = arguments[0];
    String application = arguments[1];
    String words = application + "-words";
    String counts = application + "-counts";
    try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", bootstrap))) {
      admin.createTopics(List.of(new NewTopic(words, 3, (short) 1), new NewTopic(counts, 2, (short) 1))).all().get();
      ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, application);
      ConfigEntry standby = new ConfigEntry("streams.num.standby.replicas", "1");
      admin.incrementalAlterConfigs(Map.of(group, List.of(new AlterConfigOp(standby, AlterConfigOp.OpType.SET)))).all().get();
      List<KafkaStreams> instances = new ArrayList<>();
      for (int at = 0; at < 2; at++) {
        instances.add(start(bootstrap, application, arguments[2], Path.of(arguments[3], application, "" + at), at));
      }
      produce(bootstrap, words, 0);
      try (KafkaConsumer<String, Long> consumer = consumer(bootstrap, counts)) {
        Map<String, Long> seen = new TreeMap<>();
        await(consumer, seen, 1);
        System.out.println("half " + seen);
        until(() -> members(admin, application) == 2 && standbyTasks(admin, application) > 0);
        StreamsGroupDescription described = describe(admin, application);
        System.out.println("state " + described.groupState());
        System.out.println("subtopologies " + described.subtopologies().size());
        System.out.println("members " + described.members().size());
        instances.remove(1).close(new KafkaStreams.CloseOptions().leaveGroup(true).timeout(Duration.ofSeconds(30)));
        produce(bootstrap, words, 1);
        await(consumer, seen, 2);
        System.out.println("all " + seen);
        until(() -> members(admin, application) == 1);
      }
      instances.remove(0).close(new KafkaStreams.CloseOptions().leaveGroup(true).timeout(Duration.ofSeconds(30)));
      until(() -> members(admin, application) == 0);
      long committed =
          admin.listStreamsGroupOffsets(Map.of(application, new org.apache.kafka.clients.admin.ListStreamsGroupOffsetsSpec()))
              .partitionsToOffsetAndMetadata(application).get().entrySet().stream()
              .filter(entry -> entry.getKey().topic().equals(words))
              .mapToLong(entry -> entry.getValue().offset())
              .sum();
      System.out.println("committed " + (arguments[2].equals("at_least_once") ? committed : committed >= 2 * LINES));
      admin.deleteStreamsGroups(List.of(application)).all().get();
      System.out.println("deleted " + admin.listGroups().all().get().stream().noneMatch(one -> one.groupId().equals(application)));
    }
    System.exit(0);
  }

  /** Counts words by way of a repartition topic and a store with a changelog. */
  static Topology topology(String application) {
    StreamsBuilder builder = new StreamsBuilder();
    builder
        .<String, String>stream(application + "-words")
        .flatMapValues(line -> Arrays.asList(line.split(" ")))
        .groupBy((key, word) -> word, Grouped.as("by-word"))
        .count(Materialized.as("counts"))
        .toStream()
        .to(application + "-counts", Produced.with(Serdes.String(), Serdes.Long()));
    return builder.build();
  }

  static Properties settings(String bootstrap, String application, String guarantee, Path directory, int at) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", bootstrap);
    settings.put("application.id", application);
    settings.put("group.protocol", "streams");
    settings.put("processing.guarantee", guarantee);
    settings.put("state.dir", directory.toString());
    settings.put("commit.interval.ms", 100);
    settings.put("num.stream.threads", 2 - at);
    settings.put("application.server", "localhost:" + (9000 + at));
    settings.put("default.key.serde", Serdes.String().getClass());
    settings.put("default.value.serde", Serdes.String().getClass());
    return settings;
  }

  static KafkaStreams start(String bootstrap, String application, String guarantee, Path directory, int at) {
    return start(application, settings(bootstrap, application, guarantee, directory, at));
  }

  static KafkaStreams start(String application, Properties settings) {
    KafkaStreams streams = new KafkaStreams(topology(application), settings);
    streams.setUncaughtExceptionHandler(
        thrown -> {
          thrown.printStackTrace();
          System.out.println("failed " + thrown);
          System.exit(1);
          return null;
        });
    streams.start();
    return streams;
  }

  static void produce(String bootstrap, String topic, int half) {
    Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap);
    try (KafkaProducer<String, String> producer =
        new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
      for (int at = 0; at < LINES; at++) {
        producer.send(new ProducerRecord<>(topic, at % 3, null, "all w" + at % 7 + " half" + half));
      }
    }
  }

  static KafkaConsumer<String, Long> consumer(String bootstrap, String topic) {
    Map<String, Object> settings = new HashMap<>();
    settings.put("bootstrap.servers", bootstrap);
    settings.put("group.id", topic + "-reader");
    settings.put("auto.offset.reset", "earliest");
    settings.put("isolation.level", "read_committed");
    KafkaConsumer<String, Long> consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new LongDeserializer());
    consumer.subscribe(List.of(topic));
    return consumer;
  }

  /** Reads until every word of these halves of the input is counted. */
  static void await(KafkaConsumer<String, Long> consumer, Map<String, Long> seen, int halves) {
    until(
        () -> {
          for (ConsumerRecord<String, Long> record : consumer.poll(Duration.ofMillis(200))) {
            seen.put(record.key(), record.value());
          }
          return seen.getOrDefault("all", 0L) >= (long) LINES * halves
              && seen.values().stream().mapToLong(Long::longValue).sum() >= 3L * LINES * halves;
        });
  }

  static StreamsGroupDescription describe(Admin admin, String application) {
    try {
      return admin.describeStreamsGroups(List.of(application)).describedGroups().get(application).get();
    } catch (Exception error) {
      throw new IllegalStateException(error);
    }
  }

  static int members(Admin admin, String application) {
    return (int) describe(admin, application).members().stream().map(member -> member.processId()).distinct().count();
  }

  static long standbyTasks(Admin admin, String application) {
    return describe(admin, application).members().stream().mapToLong(one -> one.assignment().standbyTasks().size()).sum();
  }

  static void until(BooleanSupplier isSo) {
    long end = System.currentTimeMillis() + LIMIT_MS;
    while (!isSo.getAsBoolean()) {
      if (System.currentTimeMillis() > end) {
        throw new IllegalStateException("it takes more than " + LIMIT_MS + " ms");
      }
      try {
        Thread.sleep(50);
      } catch (InterruptedException error) {
        throw new IllegalStateException(error);
      }
    }
  }
}
