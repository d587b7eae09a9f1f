import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.coordinator.group.api.streams.assignor.TopologyDescriber;
import org.apache.kafka.coordinator.group.streams.assignor.AssignmentConfigsImpl;
import org.apache.kafka.coordinator.group.streams.assignor.GroupSpecImpl;
import org.apache.kafka.coordinator.group.streams.assignor.MemberMetadataAndStateImpl;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;

/** Asks the sticky assignor of streams groups of Kafka 4.4: groups on stdin, a JSON object on each line, their targets on stdout. */
public class AssignTasksByState {
  static final ObjectMapper MAPPER = new ObjectMapper();

  public static void main(String[] arguments) throws Exception {
    Answers.print(Answers.lines(System.in), line -> answer(MAPPER.readTree(line)));
  }

  /** {"standby": n, "sources": [[id, tasks, stateful]...], "members": [[id, process, active, standby, [subtopology, partition, offset]...]...]}. */
  static String answer(JsonNode group) throws Exception {
    Map<String, MemberMetadataAndStateImpl> members = new HashMap<>();
    for (JsonNode member : group.get("members")) {
      Map<String, Map<Integer, Long>> offsets = new HashMap<>();
      for (int at = 4; at < member.size(); at++) {
        JsonNode one = member.get(at);
        offsets.computeIfAbsent(one.get(0).asText(), key -> new HashMap<>()).put(one.get(1).asInt(), one.get(2).asLong());
      }
      members.put(
          member.get(0).asText(),
          new MemberMetadataAndStateImpl(
              Optional.empty(),
              Optional.empty(),
              member.get(1).asText(),
              Map.of(),
              tasks(member.get(2)),
              tasks(member.get(3)),
              Map.of(),
              offsets,
              Map.of()));
    }
    var settings = AssignmentConfigsImpl.fromMap(Map.of("num.standby.replicas", group.get("standby").asText()));
    var targets = new StickyTaskAssignor().assign(new GroupSpecImpl(members, settings), new Sources(group.get("sources")));
    ObjectNode found = MAPPER.createObjectNode();
    targets
        .members()
        .forEach(
            (member, target) ->
                found.set(member, MAPPER.valueToTree(List.of(sorted(target.activeTasks()), sorted(target.standbyTasks())))));
    return MAPPER.writeValueAsString(found);
  }

  static Map<String, Set<Integer>> tasks(JsonNode given) {
    Map<String, Set<Integer>> found = new HashMap<>();
    given
        .fields()
        .forEachRemaining(
            entry -> {
              Set<Integer> partitions = new HashSet<>();
              entry.getValue().forEach(partition -> partitions.add(partition.asInt()));
              found.put(entry.getKey(), partitions);
            });
    return found;
  }

  static Map<String, Set<Integer>> sorted(Map<String, Set<Integer>> tasks) {
    Map<String, Set<Integer>> found = new TreeMap<>();
    tasks.forEach((subtopology, partitions) -> found.put(subtopology, new TreeSet<>(partitions)));
    return found;
  }

  record Sources(JsonNode sources) implements TopologyDescriber {
    @Override
    public List<String> subtopologies() {
      List<String> found = new ArrayList<>();
      sources.forEach(source -> found.add(source.get(0).asText()));
      return found;
    }

    JsonNode find(String subtopology) {
      for (JsonNode source : sources) {
        if (source.get(0).asText().equals(subtopology)) {
          return source;
        }
      }
      throw new NoSuchElementException(subtopology);
    }

    @Override
    public int maxNumInputPartitions(String subtopology) {
      return find(subtopology).get(1).asInt();
    }

    @Override
    public boolean isStateful(String subtopology) {
      return find(subtopology).get(2).asBoolean();
    }
  }
}
