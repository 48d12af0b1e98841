import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

/** Writes with the default options of Kafka's own producer: servers, topic, values; the first one
 * without idempotence. Then, with a transactional id, each value that begins with "aborted" in a
 * transaction that is aborted, and each other in one that is committed; with the offset of the group
 * "g" that is the number of transactions before. */
public class Writer {
    public static void main(String[] args) throws Exception {
        Properties options = new Properties();
        options.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        options.put(ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, StringSerializer.class);
        options.put(ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, StringSerializer.class);
        String[] values = args[2].split(",");
        options.put(ProducerConfig.ENABLE_IDEMPOTENCE_CONFIG, "false");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(options)) {
            producer.send(new ProducerRecord<>(args[1], values[0])).get();
        }
        options.remove(ProducerConfig.ENABLE_IDEMPOTENCE_CONFIG);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(options)) {
            for (int n = 1; n < values.length; n++)
                producer.send(new ProducerRecord<>(args[1], values[n])).get();
        }
        options.put(ProducerConfig.TRANSACTIONAL_ID_CONFIG, "java");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(options)) {
            producer.initTransactions();
            long count = 0;
            for (String value : values) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(args[1], "tx " + value)).get();
                producer.sendOffsetsToTransaction(
                    Map.of(new TopicPartition(args[1], 0), new OffsetAndMetadata(count++)),
                    new ConsumerGroupMetadata("g"));
                if (value.startsWith("aborted"))
                    producer.abortTransaction();
                else
                    producer.commitTransaction();
            }
        }
    }
}
