import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Joins a group of each kind, one after the other, until records have come, and leaves it again; the
 * last one when standard input ends.
 *
 * Arguments: bootstrap servers, the topic, and the prefix of the groups' ids.
 */
public class Groups {
    private static final Duration POLL = Duration.ofMillis(100);

    public static void main(String[] arguments) throws IOException {
        Properties base = new Properties();
        base.put("bootstrap.servers", arguments[0]);
        base.put("key.deserializer", ByteArrayDeserializer.class.getName());
        base.put("value.deserializer", ByteArrayDeserializer.class.getName());
        for (String protocol : List.of("classic", "consumer")) {
            Properties properties = (Properties) base.clone();
            properties.put("group.protocol", protocol);
            properties.put("group.id", arguments[2] + "-java-" + protocol);
            properties.put("auto.offset.reset", "earliest");
            try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties)) {
                consumer.subscribe(List.of(arguments[1]));
                while (consumer.poll(POLL).isEmpty()) {
                }
                consumer.commitSync();
            }
            System.out.println(protocol);
        }
        Properties properties = (Properties) base.clone();
        properties.put("group.id", arguments[2] + "-java-share");
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(properties)) {
            consumer.subscribe(List.of(arguments[1]));
            // What a share group has not seen yet begins where the log ends.
            for (int n = 0; n < 30; n++) {
                consumer.poll(POLL);
            }
            consumer.commitSync();
            System.out.println("share");
            while (System.in.read() >= 0) {
            }
        }
    }
}
