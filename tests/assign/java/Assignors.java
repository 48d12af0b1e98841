// Kafka's own assignors over groups from a file: what they assign, or how long they take.
//
//   java -cp <jars>/* Assignors.java assign <file>                    one answer a line
//   java -cp <jars>/* Assignors.java time <file> <warm-up> <repeats>  [milliseconds, ...] a line
//
// One group a line, as JSON; java_side.py writes and reads them:
//   {"assignor": "range",
//    "topics": {"t": [["rack", ...] of each partition]},
//    "members": [{"id": "m", "instance": null, "rack": null, "topics": ["t"], "owned": {"t": [0]},
//                 "generation": -1, "version": 3}]}
// "version" is that of the member's subscription: it goes through the bytes of that version, with
// the user data that the assignor of such a member adds. The answer is {"m": {"t": [0]}}, or null
// when the assignor fails: the sticky ones do on some groups with doubled claims.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
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
import org.apache.kafka.common.TopicPartition;

public class Assignors {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        try (BufferedReader groups = Files.newBufferedReader(Path.of(args[1]))) {
            for (String line = groups.readLine(); line != null; line = groups.readLine()) {
                Group group = new Group(JSON.readTree(line));
                Object answer = args[0].equals("time")
                    ? group.time(Integer.parseInt(args[2]), Integer.parseInt(args[3]))
                    : group.assign();
                out.println(JSON.writeValueAsString(answer));
            }
        }
        out.flush();
        if (out.checkError()) throw new IllegalStateException("nobody reads the answers");
    }

    record Group(String assignor, Cluster cluster, Map<String, Subscription> members) {
        Group(JsonNode group) {
            this(group.get("assignor").asText(), clusterOf(group), membersOf(group));
        }

        Map<String, Assignment> run() {
            ConsumerPartitionAssignor fresh = switch (assignor) {
                case "range" -> new RangeAssignor();
                case "roundrobin" -> new RoundRobinAssignor();
                case "sticky" -> new StickyAssignor();
                case "cooperative-sticky" -> new CooperativeStickyAssignor();
                default -> throw new IllegalArgumentException(assignor);
            };
            return fresh.assign(cluster, new GroupSubscription(members)).groupAssignment();
        }

        /** Null when the assignor fails. */
        Map<String, Map<String, List<Integer>>> assign() {
            Map<String, Assignment> all;
            try {
                all = run();
            } catch (NullPointerException error) {
                return null;
            }
            Map<String, Map<String, List<Integer>>> answer = new TreeMap<>();
            all.forEach((member, assignment) -> {
                Map<String, List<Integer>> held = new TreeMap<>();
                for (TopicPartition tp : assignment.partitions())
                    held.computeIfAbsent(tp.topic(), t -> new ArrayList<>()).add(tp.partition());
                answer.put(member, held);
            });
            return answer;
        }

        /** At least `warmup` runs, and on until five are no longer faster than the five before. */
        List<Double> time(int warmup, int repeats) {
            List<Double> warm = new ArrayList<>();
            while (warm.size() < warmup || warm.size() < 3 * warmup && isGettingFaster(warm))
                warm.add(timeOnce());
            List<Double> times = new ArrayList<>();
            while (times.size() < repeats) times.add(timeOnce());
            return times;
        }

        double timeOnce() {
            // Reading user data uses it up: the next run would see members that owned nothing.
            for (Subscription member : members.values())
                if (member.userData() != null) member.userData().rewind();
            long start = System.nanoTime();
            run();
            return (System.nanoTime() - start) / 1e6;
        }
    }

    static boolean isGettingFaster(List<Double> times) {
        int size = times.size();
        return size < 10 || median(times.subList(size - 5, size))
            < 0.97 * median(times.subList(size - 10, size - 5));
    }

    static double median(List<Double> times) {
        return times.stream().sorted().skip(times.size() / 2).findFirst().orElseThrow();
    }

    static Cluster clusterOf(JsonNode group) {
        Map<String, Node> nodes = new HashMap<>();
        List<PartitionInfo> partitions = new ArrayList<>();
        for (var topic : group.get("topics").properties()) {
            int number = 0;
            for (JsonNode racks : topic.getValue()) {
                List<Node> replicas = new ArrayList<>();
                for (JsonNode rack : racks) replicas.add(node(nodes, rack.asText()));
                if (replicas.isEmpty()) replicas.add(node(nodes, null));
                Node[] all = replicas.toArray(new Node[0]);
                partitions.add(new PartitionInfo(topic.getKey(), number++, all[0], all, all));
            }
        }
        return new Cluster("c", nodes.values(), partitions, Set.of(), Set.of());
    }

    static Node node(Map<String, Node> nodes, String rack) {
        return nodes.computeIfAbsent(rack, r -> new Node(nodes.size(), "h", 1, r));
    }

    static Map<String, Subscription> membersOf(JsonNode group) {
        String assignor = group.get("assignor").asText();
        Map<String, Subscription> members = new HashMap<>();
        for (JsonNode member : group.get("members"))
            members.put(member.get("id").asText(), subscription(assignor, member));
        return members;
    }

    static Subscription subscription(String assignor, JsonNode member) {
        List<String> topics = new ArrayList<>();
        for (JsonNode topic : member.get("topics")) topics.add(topic.asText());
        List<TopicPartition> owned = new ArrayList<>();
        for (var topic : member.get("owned").properties())
            for (JsonNode number : topic.getValue())
                owned.add(new TopicPartition(topic.getKey(), number.asInt()));
        int generation = member.get("generation").asInt();
        short version = (short) member.get("version").asInt();
        ByteBuffer userData = switch (assignor) {
            case "sticky" -> stickyData(owned, generation, version);
            case "cooperative-sticky" -> generationData(generation, version);
            default -> null;
        };
        Optional<String> rack = text(member, "rack");
        Subscription sent = new Subscription(topics, userData, owned, generation, rack);
        Subscription received = ConsumerProtocol.deserializeSubscription(
            ConsumerProtocol.serializeSubscription(sent, version));
        received.setGroupInstanceId(text(member, "instance"));
        return received;
    }

    static Optional<String> text(JsonNode member, String field) {
        JsonNode value = member.get(field);
        return value.isNull() ? Optional.empty() : Optional.of(value.asText());
    }

    /** Members before v2 whose generation is unknown have the older user data without one. */
    static ByteBuffer stickyData(List<TopicPartition> owned, int generation, short version) {
        Map<String, List<Integer>> byTopic = new TreeMap<>();
        for (TopicPartition tp : owned)
            byTopic.computeIfAbsent(tp.topic(), t -> new ArrayList<>()).add(tp.partition());
        int size = 8;
        for (var topic : byTopic.entrySet())
            size += 6 + topic.getKey().getBytes(StandardCharsets.UTF_8).length
                + 4 * topic.getValue().size();
        ByteBuffer data = ByteBuffer.allocate(size).putInt(byTopic.size());
        byTopic.forEach((topic, numbers) -> {
            byte[] name = topic.getBytes(StandardCharsets.UTF_8);
            data.putShort((short) name.length).put(name).putInt(numbers.size());
            for (int number : numbers) data.putInt(number);
        });
        if (version >= 2 || generation >= 0) data.putInt(generation);
        return data.flip();
    }

    /** Members before v2 whose generation is unknown have no user data, as kafka-python's. */
    static ByteBuffer generationData(int generation, short version) {
        if (version < 2 && generation < 0) return null;
        return ByteBuffer.allocate(4).putInt(generation).flip();
    }
}
