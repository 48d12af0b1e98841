import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Writes with the default options of Kafka's own producer: servers, topic, values; then, with a
 * transactional id, each value that begins with "aborted" in a transaction that is aborted, and each
 * other in one that is committed. */
public class Writer {
    public static void main(String[] args) throws Exception {
        Properties options = new Properties();
        options.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        options.put(ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, StringSerializer.class);
        options.put(ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, StringSerializer.class);
        String[] values = args[2].split(",");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(options)) {
            for (String value : values)
                producer.send(new ProducerRecord<>(args[1], value)).get();
        }
        options.put(ProducerConfig.TRANSACTIONAL_ID_CONFIG, "java");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(options)) {
            producer.initTransactions();
            for (String value : values) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(args[1], "tx " + value)).get();
                if (value.startsWith("aborted"))
                    producer.abortTransaction();
                else
                    producer.commitTransaction();
            }
        }
    }
}
