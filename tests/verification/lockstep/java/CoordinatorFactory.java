// In Apache's package, whose constructors are not public.

package org.apache.kafka.coordinator.group;

import com.yammer.metrics.core.MetricsRegistry;
import java.time.Duration;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.stream.Collectors;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.common.runtime.CoordinatorEventProcessor;
import org.apache.kafka.coordinator.common.runtime.CoordinatorLoader;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRuntime;
import org.apache.kafka.coordinator.common.runtime.PartitionWriter;
import org.apache.kafka.coordinator.group.metrics.GroupCoordinatorMetrics;
import org.apache.kafka.coordinator.group.metrics.GroupCoordinatorRuntimeMetrics;
import org.apache.kafka.coordinator.group.modern.share.ShareGroupConfig;
import org.apache.kafka.server.share.persister.NoOpStatePersister;
import org.apache.kafka.server.util.PartitionMetadataClient;
import org.apache.kafka.server.util.timer.Timer;

/** Builds Apache's coordinator on parts that run in one thread and in virtual time. */
public final class CoordinatorFactory {
    public static <Log extends PartitionWriter & CoordinatorLoader<CoordinatorRecord>,
            Clock extends Time & Timer,
            Events extends CoordinatorEventProcessor & ExecutorService>
        GroupCoordinator create(Map<String, String> settings, Log log, Clock clock, Events events) {
        GroupCoordinatorConfig config = GroupCoordinatorConfig.fromProps(settings);
        ShareGroupConfig shareConfig = ShareGroupConfig.fromProps(settings);
        GroupConfigManager groupConfigs = new GroupConfigManager(
            config.extractGroupConfigMap(shareConfig), config, shareConfig);
        Metrics metrics = new Metrics();
        GroupCoordinatorMetrics groupMetrics =
            new GroupCoordinatorMetrics(new MetricsRegistry(), metrics);
        LogContext logContext = new LogContext();
        CoordinatorRuntime<GroupCoordinatorShard, CoordinatorRecord> runtime =
            new CoordinatorRuntime.Builder<GroupCoordinatorShard, CoordinatorRecord>()
                .withLogContext(logContext)
                .withTime(clock)
                .withTimer(clock)
                .withEventProcessor(events)
                .withExecutorService(events)
                .withPartitionWriter(log)
                .withLoader(log)
                .withCoordinatorShardBuilderSupplier(() ->
                    new GroupCoordinatorShard.Builder(config, groupConfigs)
                        .withAuthorizerPlugin(Optional.empty()))
                .withWriteTimeout(Duration.ofMillis(config.offsetCommitTimeoutMs()))
                .withCoordinatorRuntimeMetrics(new GroupCoordinatorRuntimeMetrics(metrics))
                .withCoordinatorMetrics(groupMetrics)
                .withSerializer(new GroupCoordinatorRecordSerde())
                .withAppendLingerMs(config.appendLingerMs())
                .withCachedBufferMaxBytesSupplier(config::cachedBufferMaxBytes)
                .build();
        GroupCoordinatorService service = new GroupCoordinatorService(
            logContext,
            config,
            runtime,
            groupMetrics,
            groupConfigs,
            new NoOpStatePersister(),
            clock,
            new NoPartitions());
        service.startup(() -> 1);
        return service;
    }

    /** Only the lag of share groups needs the ends of partitions. */
    private static final class NoPartitions implements PartitionMetadataClient {
        @Override
        public Map<TopicPartition, CompletableFuture<OffsetResponse>> listLatestOffsets(
            Set<TopicPartition> partitions
        ) {
            return partitions.stream().collect(Collectors.toMap(
                partition -> partition,
                partition -> CompletableFuture.failedFuture(
                    new UnsupportedOperationException("no records here"))));
        }

        @Override
        public void close() {}
    }

    private CoordinatorFactory() {}
}
