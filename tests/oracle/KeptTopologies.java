import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.coordinator.group.api.streams.StreamsGroupTopologyDescription;
import org.apache.kafka.coordinator.group.api.streams.StreamsGroupTopologyDescriptionPlugin;

/** A plugin of Kafka 4.4 that keeps the descriptions of topologies in memory. Its main method runs a broker with it. */
public class KeptTopologies implements StreamsGroupTopologyDescriptionPlugin {
  private final Map<String, StreamsGroupTopologyDescription> kept = new ConcurrentHashMap<>();

  public static void main(String[] arguments) {
    kafka.Kafka.main(arguments);
  }

  @Override
  public void configure(Map<String, ?> settings) {}

  @Override
  public CompletableFuture<Void> setTopology(String group, int epoch, StreamsGroupTopologyDescription description) {
    kept.put(group, description);
    return CompletableFuture.completedFuture(null);
  }

  @Override
  public CompletableFuture<Void> deleteTopology(String group) {
    kept.remove(group);
    return CompletableFuture.completedFuture(null);
  }

  @Override
  public CompletableFuture<StreamsGroupTopologyDescription> getTopology(String group, int epoch) {
    return CompletableFuture.completedFuture(kept.get(group));
  }

  @Override
  public void close() {}
}
