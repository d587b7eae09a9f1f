import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;

/** Asks the assignors of the Java consumer: groups on stdin, a JSON object on each line, their assignments on stdout. */
@SuppressWarnings("deprecation")
public class AssignPartitions {
  static final ObjectMapper MAPPER = new ObjectMapper();
  static ConsumerPartitionAssignor leader;

  public static void main(String[] arguments) throws Exception {
    Answers.print(Answers.lines(System.in), line -> answer(MAPPER.readTree(line)));
  }

  /**
   * {"assignor": name, "new": whether the leader is, "generation": n, "version": v, "topics": {name: [[rack...]...]},
   * "members": [[id, instance id, subscription]...]}, bytes as hexadecimal digits. The answer has a list for each member: its
   * partitions; the bytes of its subscription and its assignment in that version; its user data after that assignment.
   */
  static String answer(JsonNode group) throws Exception {
    String name = group.get("assignor").asText();
    if (group.get("new").asBoolean()) {
      leader = create(name);
    }
    short version = (short) group.get("version").asInt();
    ObjectNode found = MAPPER.createObjectNode();
    Map<String, Subscription> subscriptions = new HashMap<>();
    Map<String, String> encoded = new HashMap<>();
    for (JsonNode member : group.get("members")) {
      Subscription subscription = ConsumerProtocol.deserializeSubscription(bytes(member.get(2)));
      subscription.setGroupInstanceId(member.get(1).isNull() ? Optional.empty() : Optional.of(member.get(1).asText()));
      subscriptions.put(member.get(0).asText(), subscription);
      encoded.put(member.get(0).asText(), hex(ConsumerProtocol.serializeSubscription(subscription, version)));
    }
    Map<String, Assignment> assignments;
    try {
      assignments = leader.assign(cluster(group.get("topics")), new GroupSubscription(subscriptions)).groupAssignment();
    } catch (RuntimeException error) {
      return MAPPER.writeValueAsString(found.put("error", error.toString()));
    }
    for (Map.Entry<String, Assignment> entry : assignments.entrySet()) {
      ArrayNode partitions = MAPPER.createArrayNode();
      entry.getValue().partitions().forEach(one -> partitions.addArray().add(one.topic()).add(one.partition()));
      ConsumerPartitionAssignor member = create(name);
      int generation = group.get("generation").asInt();
      member.onAssignment(entry.getValue(), new ConsumerGroupMetadata("group", generation, entry.getKey(), Optional.empty()));
      ByteBuffer userData = member.subscriptionUserData(Set.copyOf(subscriptions.get(entry.getKey()).topics()));
      found
          .putArray(entry.getKey())
          .add(partitions)
          .add(encoded.get(entry.getKey()))
          .add(hex(ConsumerProtocol.serializeAssignment(entry.getValue(), version)))
          .add(userData == null ? null : hex(userData));
    }
    return MAPPER.writeValueAsString(found);
  }

  static ConsumerPartitionAssignor create(String name) {
    return switch (name) {
      case "range" -> new RangeAssignor();
      case "roundrobin" -> new RoundRobinAssignor();
      case "sticky" -> new StickyAssignor();
      case "cooperative-sticky" -> new CooperativeStickyAssignor();
      default -> throw new IllegalArgumentException(name);
    };
  }

  static Cluster cluster(JsonNode topics) {
    List<PartitionInfo> partitions = new ArrayList<>();
    topics
        .fields()
        .forEachRemaining(
            topic -> {
              for (int number = 0; number < topic.getValue().size(); number++) {
                List<Node> replicas = new ArrayList<>();
                topic.getValue().get(number).forEach(rack -> replicas.add(node(replicas.size(), rack)));
                Node[] nodes = replicas.toArray(new Node[0]);
                partitions.add(new PartitionInfo(topic.getKey(), number, Node.noNode(), nodes, nodes));
              }
            });
    return new Cluster("cluster", List.of(), partitions, Set.of(), Set.of());
  }

  static Node node(int id, JsonNode rack) {
    return new Node(id, "host", 9092, rack.isNull() ? null : rack.asText());
  }

  static ByteBuffer bytes(JsonNode digits) {
    return ByteBuffer.wrap(HexFormat.of().parseHex(digits.asText()));
  }

  static String hex(ByteBuffer data) {
    byte[] copied = new byte[data.remaining()];
    data.duplicate().get(copied);
    return HexFormat.of().formatHex(copied);
  }
}
