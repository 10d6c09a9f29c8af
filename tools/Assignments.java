import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/**
 * Writes the assignments that Apache Kafka's clients compute for the cases in a file.
 *
 * <pre>java -cp kafka-clients.jar:slf4j-api.jar tools/Assignments.java < assignments.txt > new.txt</pre>
 *
 * A case is "case ASSIGNOR", lines "topic NAME RACKS", lines "member ID INSTANCE RACK GENERATION
 * TOPICS OWNED", and "end". RACKS: for each partition, separated by ";", the racks of its replicas.
 * OWNED: "topic:partition,...". "-" is none. The answers are lines "data ID HEX", the user data of a
 * sticky member, and "gets ID PARTITIONS"; such lines of the input are skipped.
 */
public class Assignments {
    static Map<String, List<PartitionInfo>> topics = new HashMap<>();
    static Map<String, Subscription> members = new TreeMap<>();
    static String assignor;

    public static void main(String[] args) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("gets") || words[0].equals("data")) continue;
            if (words[0].equals("end")) answer();
            System.out.println(line);
            switch (words[0]) {
                case "case" -> {
                    assignor = words[1];
                    topics.clear();
                    members.clear();
                }
                case "topic" -> topics.put(words[1], partitions(words[1], words[2].split(";")));
                case "member" -> member(words);
            }
        }
    }

    static List<String> listed(String text) {
        return text.equals("-") ? List.of() : Arrays.asList(text.split(","));
    }

    static Optional<String> optional(String text) {
        return text.equals("-") ? Optional.empty() : Optional.of(text);
    }

    static List<PartitionInfo> partitions(String topic, String[] racks) {
        List<PartitionInfo> partitions = new ArrayList<>();
        for (int index = 0; index < racks.length; index++) {
            List<Node> nodes = new ArrayList<>(List.of(new Node(0, "host", 9092)));
            for (String rack : listed(racks[index])) nodes.add(new Node(nodes.size(), "host", 9092, rack));
            Node[] replicas = nodes.toArray(new Node[0]);
            partitions.add(new PartitionInfo(topic, index, replicas[0], replicas, replicas));
        }
        return partitions;
    }

    static void member(String[] words) {
        List<TopicPartition> owned = new ArrayList<>();
        for (String one : listed(words[6])) {
            String[] pair = one.split(":");
            owned.add(new TopicPartition(pair[0], Integer.parseInt(pair[1])));
        }
        ByteBuffer data = null;
        if (assignor.equals("sticky") && !owned.isEmpty()) {
            StickyAssignor sticky = new StickyAssignor();
            int generation = Integer.parseInt(words[4]);
            sticky.onAssignment(
                new Assignment(owned),
                new ConsumerGroupMetadata("group", generation, words[1], Optional.empty()));
            data = sticky.subscriptionUserData(Set.copyOf(listed(words[5])));
            System.out.println("data " + words[1] + " " + HexFormat.of().formatHex(data.array()));
        }
        Subscription member =
            new Subscription(listed(words[5]), data, List.of(), -1, optional(words[3]));
        member.setGroupInstanceId(optional(words[2]));
        members.put(words[1], member);
    }

    static void answer() {
        AbstractPartitionAssignor rule =
            switch (assignor) {
                case "range" -> new RangeAssignor();
                case "roundrobin" -> new RoundRobinAssignor();
                default -> new StickyAssignor();
            };
        new TreeMap<>(rule.assignPartitions(new HashMap<>(topics), members)).forEach((id, gets) -> {
            List<String> texts = new ArrayList<>();
            Comparator<TopicPartition> order = Comparator.comparing(TopicPartition::topic);
            gets.stream().sorted(order.thenComparing(TopicPartition::partition))
                .forEach(one -> texts.add(one.topic() + ":" + one.partition()));
            System.out.println("gets " + id + " " + (texts.isEmpty() ? "-" : String.join(",", texts)));
        });
    }
}
