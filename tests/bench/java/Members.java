// Members of one group, as many as are asked for, each a consumer of Kafka's own with a thread.
//
//   java -cp <jars>/* Members.java <bootstrap> <group> <topic> <option=value> ...
//
// Prints "ready" when one of another group has come and gone: classes are loaded by then. Then it
// does what its standard input says, until that ends, and prints the assignments and revocations of members:
//   start 3         ->  gained 3 0 2      partitions that member 3 may read now
//   stop 3          ->  gone 3 0 2        partitions that it has no longer
//                       record 3 2        it has read a record of partition 2
//                       stopped 3

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Members {
    private static final Duration POLL = Duration.ofMillis(20);
    private static final Map<String, KafkaConsumer<byte[], byte[]>> RUNNING =
        new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        Properties options = new Properties();
        options.put("bootstrap.servers", args[0]);
        for (int n = 3; n < args.length; n++) {
            String[] option = args[n].split("=", 2);
            options.put(option[0], option[1]);
        }
        warmUp(options, args[1] + "-warm", args[2]);
        options.put("group.id", args[1]);
        tell("ready");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order; (order = orders.readLine()) != null; ) {
            String[] words = order.split(" ");
            if (words[0].equals("start")) {
                Thread thread = new Thread(() -> run(words[1], options, args[2]));
                thread.setDaemon(true);
                thread.start();
            } else {
                RUNNING.get(words[1]).wakeup();
            }
        }
    }

    private static KafkaConsumer<byte[], byte[]> consumer(Properties options) {
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        return new KafkaConsumer<>(options, bytes, bytes);
    }

    private static void warmUp(Properties options, String group, String topic) {
        Properties own = (Properties) options.clone();
        own.put("group.id", group);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(own)) {
            consumer.subscribe(List.of(topic));
            while (consumer.assignment().isEmpty()) {
                consumer.poll(POLL);
            }
        }
    }

    private static void run(String name, Properties options, String topic) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(options)) {
            RUNNING.put(name, consumer);
            consumer.subscribe(List.of(topic), new Listener(name));
            while (true) {
                consumer.poll(POLL).forEach(r -> tell("record " + name + " " + r.partition()));
            }
        } catch (WakeupException over) {
            // The consumer is closed by now, and has let go of all.
        }
        tell("stopped " + name);
    }

    private static synchronized void tell(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private record Listener(String name) implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            tell("gained " + name + " " + numbers(partitions));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            tell("gone " + name + " " + numbers(partitions));
        }

        private static String numbers(Collection<TopicPartition> partitions) {
            return partitions.stream()
                .map(tp -> Integer.toString(tp.partition()))
                .collect(Collectors.joining(" "));
        }
    }
}
