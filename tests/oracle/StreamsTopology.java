import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.DescribeStreamsGroupsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.StreamsGroupDescription;
import org.apache.kafka.clients.admin.StreamsGroupTopologyDescription;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;

/**
 * Runs a static member of a streams group until administrators see the description of its topology, stops it for a time, and
 * starts it again. Arguments: bootstrap servers, a directory. Prints what it saw. It needs the clients of Kafka 4.4.
 */
public class StreamsTopology {
  static final String GROUP = "described";

  public static void main(String[] arguments) throws Exception {
    try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", arguments[0]))) {
      List<NewTopic> topics = List.of(new NewTopic("lines", 2, (short) 1), new NewTopic("all", 1, (short) 1));
      admin.createTopics(topics).all().get();
      KafkaStreams streams = start(arguments[0], Path.of(arguments[1]));
      StreamsGroupDescription described = describe(admin);
      while (described.topologyDescription().isEmpty() || described.members().stream().anyMatch(one -> tasks(one) < 4)) {
        Thread.sleep(50);
        described = describe(admin);
      }
      System.out.println("status " + described.topologyDescriptionStatus());
      StreamsGroupTopologyDescription topology = described.topologyDescription().get();
      topology.subtopologies().forEach(part -> System.out.println("part " + part.id() + " " + new TreeSet<>(names(part))));
      topology.globalStores().forEach(one -> System.out.println("store " + one.processor().stores()));
      System.out.println("assignor " + described.assignorName().orElse("none"));
      System.out.println("instance " + described.members().iterator().next().instanceId().orElse("none"));
      streams.close(Duration.ofSeconds(30));
      System.out.println("members " + describe(admin).members().size());
      streams = start(arguments[0], Path.of(arguments[1]));
      while (describe(admin).members().stream().anyMatch(one -> one.memberEpoch() < 0 || tasks(one) < 4)) {
        Thread.sleep(50);
      }
      System.out.println("back " + describe(admin).members().size());
      streams.close(new KafkaStreams.CloseOptions().leaveGroup(true).timeout(Duration.ofSeconds(30)));
    }
    System.exit(0);
  }

  static List<String> names(StreamsGroupTopologyDescription.Subtopology part) {
    return part.nodes().stream().map(node -> node.getClass().getSimpleName() + ":" + node.name()).toList();
  }

  static long tasks(org.apache.kafka.clients.admin.StreamsGroupMemberDescription member) {
    return member.assignment().activeTasks().stream().mapToLong(one -> one.partitions().size()).sum();
  }

  static StreamsGroupDescription describe(Admin admin) throws Exception {
    DescribeStreamsGroupsOptions options = new DescribeStreamsGroupsOptions().includeTopologyDescription(true);
    for (int at = 0; ; at++) {
      try {
        return admin.describeStreamsGroups(List.of(GROUP), options).describedGroups().get(GROUP).get();
      } catch (java.util.concurrent.ExecutionException error) {
        if (at == 200) {
          throw error;
        }
        Thread.sleep(50);
      }
    }
  }

  static KafkaStreams start(String bootstrap, Path directory) {
    StreamsBuilder builder = new StreamsBuilder();
    builder.<String, String>stream("lines").groupBy((key, word) -> word).count();
    builder.globalTable("all");
    Properties settings = new Properties();
    settings.put("bootstrap.servers", bootstrap);
    settings.put("application.id", GROUP);
    settings.put("group.protocol", "streams");
    settings.put("group.instance.id", "first");
    settings.put("num.stream.threads", 1);
    settings.put("state.dir", directory.toString());
    settings.put("default.key.serde", Serdes.String().getClass());
    settings.put("default.value.serde", Serdes.String().getClass());
    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    streams.start();
    return streams;
  }
}
