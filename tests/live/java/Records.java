// Kafka's own producer and consumer, record by record.
//
//   java -cp <jars>/* Records.java read <bootstrap> <isolation level> <topic>=<count> ...
//       prints the records of the topics, up to their ends; there are at least <count>.
//   java -cp <jars>/* Records.java write <bootstrap> <transactional id> <topic>=<codec> ...
//       writes the records of standard input to each of the topics. Unless the id is "-", a line
//       "commit" or "abort" ends a transaction of the records before it.
//   java -cp <jars>/* Records.java partition
//       prints the partition of each key of standard input, for 1 to 50 partitions: one line a key.
//
// A record is a line: topic, partition, timestamp, key, value, headers, with spaces between them;
// the topic is "-" on standard input. Bytes are hexadecimal, with "=" before them; null is "-".
// Headers are <name>:<value>, with commas between them.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Records {
    private static final HexFormat HEX = HexFormat.of();
    private static final int MOST_PARTITIONS = 50;
    private static final long PATIENCE_MS = 30_000;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        List<String> given = List.of(args);
        switch (args[0]) {
            case "read" -> read(args[1], args[2], given.subList(3, args.length), out);
            case "write" ->
                write(args[1], args[2], given.subList(3, args.length), in.lines().toList());
            default -> in.lines().forEach(key -> out.println(partitions(bytes(key))));
        }
        out.flush();
    }

    private static void read(
            String bootstrap, String isolation, List<String> topics, PrintStream out) {
        Properties options = new Properties();
        options.put("bootstrap.servers", bootstrap);
        options.put("isolation.level", isolation);
        options.put("enable.auto.commit", "false");
        ByteArrayDeserializer plain = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(options, plain, plain)) {
            List<TopicPartition> all = new ArrayList<>();
            Map<String, Integer> left = new HashMap<>();
            for (String topic : topics) {
                String[] parts = topic.split("=");
                left.put(parts[0], Integer.parseInt(parts[1]));
                consumer.partitionsFor(parts[0])
                    .forEach(p -> all.add(new TopicPartition(p.topic(), p.partition())));
            }
            consumer.assign(all);
            consumer.seekToBeginning(all);
            long until = System.currentTimeMillis() + PATIENCE_MS;
            while (System.currentTimeMillis() < until) {
                for (ConsumerRecord<byte[], byte[]> one : consumer.poll(Duration.ofMillis(50))) {
                    left.merge(one.topic(), -1, Integer::sum);
                    out.println(line(one));
                }
                Map<TopicPartition, Long> ends = consumer.endOffsets(all);
                if (left.values().stream().allMatch(n -> n <= 0)
                        && all.stream().allMatch(tp -> consumer.position(tp) >= ends.get(tp))) {
                    return;
                }
            }
            throw new IllegalStateException("records are missing: " + left);
        }
    }

    private static void write(
            String bootstrap, String transactionalId, List<String> topics, List<String> lines)
            throws Exception {
        boolean transacts = !transactionalId.equals("-");
        for (String topic : topics) {
            String[] parts = topic.split("=");
            Properties options = new Properties();
            options.put("bootstrap.servers", bootstrap);
            options.put("compression.type", parts[1]);
            options.put("linger.ms", "20");
            if (transacts) {
                options.put("transactional.id", transactionalId + "-" + parts[0]);
            }
            ByteArraySerializer plain = new ByteArraySerializer();
            try (KafkaProducer<byte[], byte[]> producer =
                    new KafkaProducer<>(options, plain, plain)) {
                var sent = new ArrayList<java.util.concurrent.Future<?>>();
                if (transacts) {
                    producer.initTransactions();
                }
                boolean isOpen = !transacts;
                for (String line : lines) {
                    if (!isOpen) {
                        producer.beginTransaction();
                        isOpen = true;
                    }
                    if (line.equals("commit")) {
                        producer.commitTransaction();
                        isOpen = false;
                    } else if (line.equals("abort")) {
                        producer.flush();
                        producer.abortTransaction();
                        isOpen = false;
                    } else {
                        sent.add(producer.send(record(parts[0], line.split(" ", -1))));
                    }
                }
                for (var one : sent) {
                    one.get();
                }
            }
        }
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, String[] fields) {
        ProducerRecord<byte[], byte[]> made = new ProducerRecord<>(
            topic,
            Integer.valueOf(fields[1]),
            Long.valueOf(fields[2]),
            bytes(fields[3]),
            bytes(fields[4]));
        for (String header : fields[5].isEmpty() ? new String[0] : fields[5].split(",")) {
            String[] pair = header.split(":");
            made.headers().add(new String(bytes(pair[0]), StandardCharsets.UTF_8), bytes(pair[1]));
        }
        return made;
    }

    private static String line(ConsumerRecord<byte[], byte[]> record) {
        List<String> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            byte[] name = header.key().getBytes(StandardCharsets.UTF_8);
            headers.add(hex(name) + ":" + hex(header.value()));
        }
        return String.join(
            " ",
            record.topic(),
            Integer.toString(record.partition()),
            Long.toString(record.timestamp()),
            hex(record.key()),
            hex(record.value()),
            String.join(",", headers));
    }

    private static String partitions(byte[] key) {
        return IntStream.rangeClosed(1, MOST_PARTITIONS)
            .mapToObj(count -> Integer.toString(BuiltInPartitioner.partitionForKey(key, count)))
            .collect(Collectors.joining(" "));
    }

    private static byte[] bytes(String text) {
        return text.equals("-") ? null : HEX.parseHex(text.substring(1));
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? "-" : "=" + HEX.formatHex(bytes);
    }
}
