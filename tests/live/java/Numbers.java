// Counts the numbered records of topics, as Kafka's own consumer returns them with read_committed.
//
//   java -cp <jars>/* Numbers.java <bootstrap> <count> <seconds> <topic> ...
//
// The numbers are 0 to <count> - 1. The value of a record begins with its number, in digits, and a
// space. Open transactions are waited for, for so many seconds. Prints a line for each topic:
//
//   <topic> records=<n> lost=<n> duplicated=<n> disordered=<n> open=<n> examples=<number>,...
//
// duplicated: records beyond the first of their number; disordered: records with a lower number than
// one of the same key before them; open: partitions in which a transaction has not ended.

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class Numbers {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final int EXAMPLES = 20;

    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[1]);
        long timeoutMs = 1000 * Long.parseLong(args[2]);
        for (String topic : List.of(args).subList(3, args.length)) {
            System.out.println(topic + " " + counted(args[0], count, timeoutMs, topic));
        }
    }

    private static String counted(String bootstrap, int count, long timeoutMs, String topic)
            throws Exception {
        try (KafkaConsumer<String, String> consumer = open(bootstrap, "read_committed")) {
            List<TopicPartition> all = new ArrayList<>();
            consumer.partitionsFor(topic)
                .forEach(p -> all.add(new TopicPartition(p.topic(), p.partition())));
            int open = open(bootstrap, timeoutMs, consumer, all);
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            int[] found = new int[count];
            Map<String, Integer> highest = new HashMap<>();
            int records = 0;
            int disordered = 0;
            List<Integer> examples = new ArrayList<>();
            while (all.stream().anyMatch(tp -> consumer.position(tp) < ends.get(tp))) {
                for (ConsumerRecord<String, String> one : consumer.poll(POLL)) {
                    int number = Integer.parseInt(one.value().substring(0, one.value().indexOf(' ')));
                    records++;
                    found[number]++;
                    if (highest.merge(one.key(), number, Math::max) > number) {
                        disordered++;
                    }
                }
            }
            int lost = 0;
            int duplicated = 0;
            for (int number = 0; number < count; number++) {
                lost += found[number] == 0 ? 1 : 0;
                duplicated += Math.max(0, found[number] - 1);
                if (found[number] != 1 && examples.size() < EXAMPLES) {
                    examples.add(number);
                }
            }
            return "records=" + records + " lost=" + lost + " duplicated=" + duplicated
                + " disordered=" + disordered + " open=" + open
                + " examples=" + String.join(",", examples.stream().map(String::valueOf).toList());
        }
    }

    /** Returns how many partitions still have an open transaction after a while. */
    private static int open(
            String bootstrap,
            long timeoutMs,
            KafkaConsumer<String, String> committed,
            List<TopicPartition> all) throws InterruptedException {
        try (KafkaConsumer<String, String> uncommitted = open(bootstrap, "read_uncommitted")) {
            Map<TopicPartition, Long> ends = uncommitted.endOffsets(all);
            long until = System.currentTimeMillis() + timeoutMs;
            while (true) {
                Map<TopicPartition, Long> stable = committed.endOffsets(all);
                int open = (int) all.stream().filter(tp -> stable.get(tp) < ends.get(tp)).count();
                if (open == 0 || System.currentTimeMillis() > until) {
                    return open;
                }
                Thread.sleep(100);
            }
        }
    }

    private static KafkaConsumer<String, String> open(String bootstrap, String isolation) {
        Properties options = new Properties();
        options.put("bootstrap.servers", bootstrap);
        options.put("isolation.level", isolation);
        options.put("enable.auto.commit", "false");
        StringDeserializer text = new StringDeserializer();
        return new KafkaConsumer<>(options, text, text);
    }
}
