package kafkagroup.oracle;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.coordinator.common.runtime.CoordinatorLoader;
import org.apache.kafka.coordinator.common.runtime.CoordinatorPlayback;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.common.runtime.PartitionWriter;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.VerificationGuard;

/** `__consumer_offsets` with one partition: replicated as soon as it is written, never compacted. */
final class OffsetsTopic implements PartitionWriter, CoordinatorLoader<CoordinatorRecord> {
    private static final LogConfig CONFIG = new LogConfig(Map.of());
    private static final GroupCoordinatorRecordSerde SERDE = new GroupCoordinatorRecordSerde();

    private final List<Listener> listeners = new ArrayList<>();
    private final List<MutableRecordBatch> batches = new ArrayList<>();
    private long endOffset = 0;

    @Override
    public long append(
        TopicPartition partition, VerificationGuard guard, MemoryRecords records, short version
    ) {
        // The caller uses its buffer again.
        ByteBuffer copy = ByteBuffer.allocate(records.sizeInBytes());
        copy.put(records.buffer().duplicate()).flip();
        MutableRecordBatch batch = MemoryRecords.readableRecords(copy).batches().iterator().next();
        endOffset += batch.countOrNull();
        batch.setLastOffset(endOffset - 1);
        batches.add(batch);
        listeners.forEach(listener -> listener.onHighWatermarkUpdated(partition, endOffset));
        return endOffset;
    }

    @Override
    public CompletableFuture<LoadSummary> load(
        TopicPartition partition, CoordinatorPlayback<CoordinatorRecord> playback
    ) {
        for (MutableRecordBatch batch : batches) {
            for (Record record : batch) {
                playback.replay(
                    record.offset(),
                    batch.producerId(),
                    batch.producerEpoch(),
                    SERDE.deserialize(record.key(), record.value()));
            }
        }
        if (!batches.isEmpty()) {
            playback.updateLastWrittenOffset(endOffset);
            playback.updateLastCommittedOffset(endOffset);
        }
        return CompletableFuture.completedFuture(new LoadSummary(0, 0, 0, 0, 0));
    }

    @Override
    public void registerListener(TopicPartition partition, Listener listener) {
        listeners.add(listener);
    }

    @Override
    public void deregisterListener(TopicPartition partition, Listener listener) {
        listeners.remove(listener);
    }

    @Override
    public LogConfig config(TopicPartition partition) {
        return CONFIG;
    }

    @Override
    public CompletableFuture<VerificationGuard> maybeStartTransactionVerification(
        TopicPartition partition, String transactionalId, long producerId, short epoch, int version
    ) {
        return CompletableFuture.completedFuture(VerificationGuard.SENTINEL);
    }

    @Override
    public CompletableFuture<Void> deleteRecords(TopicPartition partition, long beforeOffset) {
        return CompletableFuture.completedFuture(null);
    }

    @Override
    public void close() {
        listeners.clear();
    }
}
