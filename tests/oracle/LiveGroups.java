// Groups with members on a running broker, and what Kafka's Admin client says of them. Arguments: the broker's host:port.
//
// Joins two members to a classic and to a consumer group, one to a share and one to a streams group (through the request
// itself: Kafka's streams library is not at hand), commits offsets, some of them in a transaction that stays open, and
// acknowledges some of a share group's records. Prints one line of JSON a group, then ends without leaving the groups, so
// that their members are still in the broker's log when it stops.
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.*;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.message.StreamsGroupHeartbeatRequestData;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.message.StreamsGroupHeartbeatResponseData;
import org.apache.kafka.common.requests.*;
import org.apache.kafka.common.serialization.*;

public class LiveGroups {
    static String bootstrap;
    static final ObjectMapper JSON = new ObjectMapper();

    static Properties properties(Object... pairs) {
        Properties out = new Properties();
        out.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < pairs.length; i += 2) out.put(pairs[i], pairs[i + 1].toString());
        return out;
    }

    static KafkaConsumer<byte[], byte[]> consumer(Object... pairs) {
        Properties out = properties(pairs);
        out.put("auto.offset.reset", "earliest");
        out.put("enable.auto.commit", "false");
        return new KafkaConsumer<>(out, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** Two members of a group, polled in turns until both have partitions; then they commit what they read. */
    static void join(String protocol, String group, String instance) {
        List<KafkaConsumer<byte[], byte[]>> members = new ArrayList<>();
        for (int n = 0; n < 2; n++) {
            List<Object> pairs = new ArrayList<>(List.of("group.id", group, "group.protocol", protocol, "client.id", group + "-" + n));
            if (n == 0) pairs.addAll(List.of("group.instance.id", instance));
            if (protocol.equals("classic")) pairs.addAll(List.of("session.timeout.ms", 1000000));
            members.add(consumer(pairs.toArray()));
        }
        for (var member : members) member.subscribe(List.of("orders"));
        // Members of the consumer protocol need some heartbeats for it, of which one comes every 5 s.
        for (int round = 0; !haveAll(members); round++) {
            if (round == 600) throw new IllegalStateException("the members of " + group + " do not get all partitions");
            for (var member : members) member.poll(Duration.ofMillis(50));
        }
        for (var member : members) {
            for (TopicPartition partition : member.assignment()) member.position(partition);
            member.commitSync();
        }
        KEPT.addAll(members);
    }
    static boolean haveAll(List<KafkaConsumer<byte[], byte[]>> members) {
        return members.stream().noneMatch(member -> member.assignment().isEmpty())
            && members.stream().mapToInt(member -> member.assignment().size()).sum() == 3;
    }

    static final List<Object> KEPT = new ArrayList<>();

    static void share(Admin admin, String group) throws Exception {
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group),
            List.of(new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET)))).all().get();
        var member = new KafkaShareConsumer<>(properties("group.id", group, "client.id", "sharer", "share.acknowledgement.mode", "explicit"),
            new ByteArrayDeserializer(), new ByteArrayDeserializer());
        member.subscribe(List.of("orders"));
        int seen = 0;
        for (int round = 0; round < 100 && seen < 60; round++) {
            for (var record : member.poll(Duration.ofMillis(200))) {
                seen++;
                member.acknowledge(record, record.offset() % 7 == 3 ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
            }
            member.commitSync();
        }
        KEPT.add(member);
    }

    static void streams(String group) throws Exception {
        String[] place = bootstrap.split(":");
        Socket socket = new Socket(place[0], Integer.parseInt(place[1]));
        KEPT.add(socket);
        var data = new StreamsGroupHeartbeatRequestData().setGroupId(group).setMemberId(Uuid.randomUuid().toString())
            .setMemberEpoch(0).setRebalanceTimeoutMs(60000).setProcessId("process-1").setClientTags(List.of())
            .setActiveTasks(List.of()).setStandbyTasks(List.of()).setWarmupTasks(List.of())
            .setTopology(new StreamsGroupHeartbeatRequestData.Topology().setEpoch(1).setSubtopologies(List.of(
                new StreamsGroupHeartbeatRequestData.Subtopology().setSubtopologyId("0").setSourceTopics(List.of("orders")))));
        for (int round = 0; round < 300; round++) {
            var answer = heartbeat(socket, data);
            Errors error = Errors.forCode(answer.errorCode());
            // Right after a start the coordinator may not have loaded its partition yet.
            boolean comes = error == Errors.COORDINATOR_LOAD_IN_PROGRESS || error == Errors.COORDINATOR_NOT_AVAILABLE || error == Errors.NOT_COORDINATOR;
            if (comes) { Thread.sleep(200); continue; }
            if (error != Errors.NONE) throw new IllegalStateException(error + ": " + answer.errorMessage());
            data.setMemberEpoch(answer.memberEpoch()).setTopology(null).setProcessId(null).setClientTags(null).setRebalanceTimeoutMs(-1);
            if (answer.activeTasks() == null) data.setActiveTasks(null).setStandbyTasks(null).setWarmupTasks(null);
            else {
                List<StreamsGroupHeartbeatRequestData.TaskIds> tasks = new ArrayList<>();
                for (var task : answer.activeTasks()) tasks.add(new StreamsGroupHeartbeatRequestData.TaskIds().setSubtopologyId(task.subtopologyId()).setPartitions(task.partitions()));
                data.setActiveTasks(tasks).setStandbyTasks(List.of()).setWarmupTasks(List.of());
                if (!tasks.isEmpty()) { heartbeat(socket, data); return; }
            }
            Thread.sleep(200);
        }
        throw new IllegalStateException("the member of " + group + " gets no tasks");
    }

    static StreamsGroupHeartbeatResponseData heartbeat(Socket socket, StreamsGroupHeartbeatRequestData data) throws Exception {
        short version = 0;
        var request = new StreamsGroupHeartbeatRequest.Builder(data).build(version);
        var header = new RequestHeader(request.apiKey(), version, "streamer", 1);
        ByteBuffer bytes = request.serializeWithHeader(header);
        var out = new DataOutputStream(socket.getOutputStream());
        out.writeInt(bytes.remaining());
        out.write(bytes.array(), bytes.arrayOffset() + bytes.position(), bytes.remaining());
        var in = new DataInputStream(socket.getInputStream());
        byte[] answer = new byte[in.readInt()];
        in.readFully(answer);
        ByteBuffer buffer = ByteBuffer.wrap(answer);
        ResponseHeader.parse(buffer, header.headerVersion() >= 2 ? (short) 1 : (short) 0);
        return new StreamsGroupHeartbeatResponseData(new ByteBufferAccessor(buffer), version);
    }

    static void pending(String group) {
        var producer = new KafkaProducer<>(properties("transactional.id", "pending-offsets", "transaction.timeout.ms", 900000), new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
        producer.beginTransaction();
        producer.sendOffsetsToTransaction(Map.of(new TopicPartition("orders", 2), new OffsetAndMetadata(77)), new ConsumerGroupMetadata(group));
        producer.flush();
        KEPT.add(producer);
    }

    static List<String> partitions(Collection<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::toString).sorted().toList();
    }

    static void print(String group, String kind, Object state, List<Map<String, Object>> members, Map<String, Object> offsets) throws Exception {
        members.sort(Comparator.comparing(member -> member.get("memberId").toString()));
        Map<String, Object> out = new TreeMap<>();
        out.put("groupId", group);
        out.put("kind", kind);
        out.put("state", state.toString());
        out.put("members", members);
        out.put("offsets", offsets);
        System.out.println(JSON.writeValueAsString(out));
    }

    static Map<String, Object> member(String id, Optional<String> instance, String client, String host, Object assigned) {
        Map<String, Object> out = new TreeMap<>();
        out.put("memberId", id);
        out.put("instanceId", instance.orElse(null));
        out.put("clientId", client);
        out.put("clientHost", host);
        out.put("assigned", assigned);
        return out;
    }

    static void tell(Admin admin) throws Exception {
        for (String group : List.of("live-classic", "live-consumer")) {
            var found = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            List<Map<String, Object>> members = new ArrayList<>();
            for (var one : found.members()) members.add(member(one.consumerId(), one.groupInstanceId(), one.clientId(), one.host(), partitions(one.assignment().topicPartitions())));
            Map<String, Object> offsets = new TreeMap<>();
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().forEach((partition, offset) -> offsets.put(partition.toString(), offset.offset()));
            print(group, found.type().toString(), found.groupState(), members, offsets);
        }
        var share = admin.describeShareGroups(List.of("live-share")).all().get().get("live-share");
        List<Map<String, Object>> sharers = new ArrayList<>();
        for (var one : share.members()) sharers.add(member(one.consumerId(), Optional.empty(), one.clientId(), one.host(), partitions(one.assignment().topicPartitions())));
        Map<String, Object> starts = new TreeMap<>();
        admin.listShareGroupOffsets(Map.of("live-share", new ListShareGroupOffsetsSpec())).partitionsToOffsetInfo("live-share").get()
            .forEach((partition, info) -> { if (info != null) starts.put(partition.toString(), List.of(info.startOffset(), info.lag().orElse(-1L))); });
        print("live-share", "Share", share.groupState(), sharers, starts);
        var streams = admin.describeStreamsGroups(List.of("live-streams")).all().get().get("live-streams");
        List<Map<String, Object>> streamers = new ArrayList<>();
        for (var one : streams.members()) {
            List<String> tasks = new ArrayList<>();
            for (var task : one.assignment().activeTasks()) for (int number : task.partitions()) tasks.add(task.subtopologyId() + "-" + number);
            Collections.sort(tasks);
            streamers.add(member(one.memberId(), one.instanceId(), one.clientId(), one.clientHost(), tasks));
        }
        print("live-streams", "Streams", streams.groupState(), streamers, Map.of());
    }

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        var admin = Admin.create(properties());
        streams("live-streams");
        share(admin, "live-share");
        join("classic", "live-classic", "static-one");
        join("consumer", "live-consumer", "static-two");
        pending("eos-group");
        tell(admin);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
