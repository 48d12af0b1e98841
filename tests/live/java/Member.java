// A member of Kafka's own consumer, with commands from its standard input, until that ends.
//
//   java -cp <jars>/* Member.java <bootstrap> <group and topic> <option=value> ...
//
// Prints one line for all that happens, with the microseconds since 1970 at which it did:
//   1700000000000000 gained 0 2       before the application may read these partitions
//   1700000000000000 gone 2           before the member reports them as released
//   1700000000000000 record 0/17      the value of a record

import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

public class Member implements ConsumerRebalanceListener {
    public static void main(String[] args) throws Exception {
        Properties options = new Properties();
        options.put("bootstrap.servers", args[0]);
        options.put("group.id", args[1]);
        options.put("auto.offset.reset", "earliest");
        for (int n = 2; n < args.length; n++) {
            String[] option = args[n].split("=", 2);
            options.put(option[0], option[1]);
        }
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(options, text, text)) {
            Thread watch = new Thread(() -> {
                try {
                    while (System.in.read() >= 0) {
                        continue;
                    }
                } catch (java.io.IOException broken) {
                    // As good as its end.
                }
                consumer.wakeup();
            });
            watch.setDaemon(true);
            watch.start();
            consumer.subscribe(List.of(args[1]), new Member());
            while (true) {
                consumer.poll(Duration.ofMillis(20)).forEach(r -> tell("record", r.value()));
            }
        } catch (WakeupException over) {
            // The consumer is closed by now, and has let go of all.
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        tell("gained", numbers(partitions));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        tell("gone", numbers(partitions));
    }

    private static String numbers(Collection<TopicPartition> partitions) {
        return partitions.stream()
            .map(tp -> Integer.toString(tp.partition()))
            .collect(Collectors.joining(" "));
    }

    private static void tell(String what, String details) {
        long now = ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
        System.out.println(now + " " + what + " " + details);
    }
}
