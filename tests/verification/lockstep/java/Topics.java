package kafkagroup.oracle;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.FeatureLevelRecord;
import org.apache.kafka.common.metadata.PartitionRecord;
import org.apache.kafka.common.metadata.RemoveTopicRecord;
import org.apache.kafka.common.metadata.TopicRecord;
import org.apache.kafka.image.MetadataDelta;
import org.apache.kafka.image.MetadataImage;
import org.apache.kafka.image.MetadataProvenance;
import org.apache.kafka.server.common.MetadataVersion;

/** The topics of the cluster, as the images that its controller would publish. */
final class Topics {
    record Topic(Uuid id, int partitions) {}

    /** One step from an image to the next. */
    record Update(MetadataDelta delta, MetadataImage image) {}

    private static final List<Integer> REPLICAS = List.of(World.NODE);

    private Map<String, Topic> topics = Map.of();
    private Map<Uuid, String> names = Map.of();
    private MetadataImage image = MetadataImage.EMPTY;
    private long offset = 0;

    Optional<String> name(Uuid id) {
        return Optional.ofNullable(names.get(id));
    }

    /** Returns Kafka's zero id for an unknown topic. */
    Uuid id(String name) {
        Topic topic = topics.get(name);
        return topic == null ? Uuid.ZERO_UUID : topic.id();
    }

    boolean contains(String topic) {
        return topics.containsKey(topic);
    }

    boolean contains(String topic, int partition) {
        Topic known = topics.get(topic);
        return known != null && 0 <= partition && partition < known.partitions();
    }

    /** Returns the first image: the features of Kafka 4.3, and no topics. */
    Update start() {
        MetadataDelta delta = delta();
        delta.replay(new FeatureLevelRecord()
            .setName(MetadataVersion.FEATURE_NAME)
            .setFeatureLevel(MetadataVersion.latestProduction().featureLevel()));
        return publish(delta);
    }

    /** A topic that has another id, or fewer partitions, was deleted and created again. */
    Update replace(Map<String, Topic> next) {
        MetadataDelta delta = delta();
        topics.forEach((name, old) -> {
            if (!continues(old, next.get(name))) {
                delta.replay(new RemoveTopicRecord().setTopicId(old.id()));
            }
        });
        next.forEach((name, topic) -> {
            Topic old = topics.get(name);
            int existing = 0;
            if (old != null && continues(old, topic)) {
                existing = old.partitions();
            } else {
                delta.replay(new TopicRecord().setName(name).setTopicId(topic.id()));
            }
            for (int partition = existing; partition < topic.partitions(); partition++) {
                delta.replay(partitionRecord(topic.id(), partition));
            }
        });
        topics = next;
        names = new HashMap<>();
        next.forEach((name, topic) -> names.put(topic.id(), name));
        return publish(delta);
    }

    private static boolean continues(Topic old, Topic next) {
        return next != null && next.id().equals(old.id()) && next.partitions() >= old.partitions();
    }

    private static PartitionRecord partitionRecord(Uuid topic, int partition) {
        return new PartitionRecord()
            .setTopicId(topic)
            .setPartitionId(partition)
            .setReplicas(REPLICAS)
            .setIsr(REPLICAS)
            .setLeader(World.NODE);
    }

    private MetadataDelta delta() {
        return new MetadataDelta.Builder().setImage(image).build();
    }

    private Update publish(MetadataDelta delta) {
        image = delta.apply(new MetadataProvenance(++offset, 1, 0, true));
        return new Update(delta, image);
    }
}
