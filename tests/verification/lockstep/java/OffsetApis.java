package kafkagroup.oracle;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.Function;
import java.util.function.IntConsumer;
import java.util.stream.Collectors;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.OffsetCommitRequestData.OffsetCommitRequestPartition;
import org.apache.kafka.common.message.OffsetCommitRequestData.OffsetCommitRequestTopic;
import org.apache.kafka.common.message.OffsetDeleteRequestData;
import org.apache.kafka.common.message.OffsetDeleteRequestData.OffsetDeleteRequestPartition;
import org.apache.kafka.common.message.OffsetDeleteRequestData.OffsetDeleteRequestTopic;
import org.apache.kafka.common.message.OffsetDeleteRequestData.OffsetDeleteRequestTopicCollection;
import org.apache.kafka.common.message.OffsetFetchRequestData.OffsetFetchRequestGroup;
import org.apache.kafka.common.message.OffsetFetchRequestData.OffsetFetchRequestTopics;
import org.apache.kafka.common.message.OffsetFetchResponseData.OffsetFetchResponseGroup;
import org.apache.kafka.common.message.OffsetFetchResponseData.OffsetFetchResponsePartitions;
import org.apache.kafka.common.message.OffsetFetchResponseData.OffsetFetchResponseTopics;
import org.apache.kafka.common.message.TxnOffsetCommitRequestData.TxnOffsetCommitRequestPartition;
import org.apache.kafka.common.message.TxnOffsetCommitRequestData.TxnOffsetCommitRequestTopic;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.requests.OffsetCommitRequest;
import org.apache.kafka.common.requests.OffsetCommitResponse;
import org.apache.kafka.common.requests.OffsetDeleteRequest;
import org.apache.kafka.common.requests.OffsetDeleteResponse;
import org.apache.kafka.common.requests.OffsetFetchRequest;
import org.apache.kafka.common.requests.OffsetFetchResponse;
import org.apache.kafka.common.requests.RequestContext;
import org.apache.kafka.common.requests.TxnOffsetCommitRequest;
import org.apache.kafka.common.requests.TxnOffsetCommitResponse;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.coordinator.group.GroupCoordinator;

/**
 * What a broker does to requests about offsets before its coordinator: it rejects unknown topics and
 * partitions, and translates topic ids.
 */
final class OffsetApis {
    private static final BufferSupplier BUFFERS = BufferSupplier.NO_CACHING;

    private final GroupCoordinator coordinator;
    private final Topics topics;

    OffsetApis(GroupCoordinator coordinator, Topics topics) {
        this.coordinator = coordinator;
        this.topics = topics;
    }

    CompletableFuture<OffsetCommitResponse> commit(
        RequestContext context, OffsetCommitRequest request
    ) {
        boolean byId = OffsetCommitResponse.useTopicIds(request.version());
        OffsetCommitResponse.Builder response = OffsetCommitResponse.newBuilder(byId);
        List<OffsetCommitRequestTopic> accepted = new ArrayList<>();
        for (OffsetCommitRequestTopic topic : request.data().topics()) {
            if (byId) {
                topic.setName(topics.name(topic.topicId()).orElse(""));
            } else {
                topic.setTopicId(topics.id(topic.name()));
            }
            if (!topics.contains(topic.name())) {
                response.addPartitions(
                    topic.topicId(),
                    topic.name(),
                    topic.partitions(),
                    OffsetCommitRequestPartition::partitionIndex,
                    byId ? Errors.UNKNOWN_TOPIC_ID : Errors.UNKNOWN_TOPIC_OR_PARTITION);
                continue;
            }
            List<OffsetCommitRequestPartition> known = known(
                topic.name(),
                topic.partitions(),
                OffsetCommitRequestPartition::partitionIndex,
                index -> response.addPartition(
                    topic.topicId(), topic.name(), index, Errors.UNKNOWN_TOPIC_OR_PARTITION));
            if (!known.isEmpty()) {
                accepted.add(topic.duplicate().setPartitions(known));
            }
        }
        if (accepted.isEmpty()) {
            return CompletableFuture.completedFuture(response.build());
        }
        return coordinator
            .commitOffsets(context, request.data().duplicate().setTopics(accepted), BUFFERS)
            .thenApply(results -> response.merge(results).build());
    }

    CompletableFuture<TxnOffsetCommitResponse> commit(
        RequestContext context, TxnOffsetCommitRequest request
    ) {
        TxnOffsetCommitResponse.Builder response = new TxnOffsetCommitResponse.Builder();
        List<TxnOffsetCommitRequestTopic> accepted = new ArrayList<>();
        for (TxnOffsetCommitRequestTopic topic : request.data().topics()) {
            if (!topics.contains(topic.name())) {
                response.addPartitions(
                    topic.name(),
                    topic.partitions(),
                    TxnOffsetCommitRequestPartition::partitionIndex,
                    Errors.UNKNOWN_TOPIC_OR_PARTITION);
                continue;
            }
            List<TxnOffsetCommitRequestPartition> known = known(
                topic.name(),
                topic.partitions(),
                TxnOffsetCommitRequestPartition::partitionIndex,
                index -> response.addPartition(
                    topic.name(), index, Errors.UNKNOWN_TOPIC_OR_PARTITION));
            if (!known.isEmpty()) {
                accepted.add(topic.duplicate().setPartitions(known));
            }
        }
        if (accepted.isEmpty()) {
            return CompletableFuture.completedFuture(response.build());
        }
        return coordinator
            .commitTransactionalOffsets(
                context, request.data().duplicate().setTopics(accepted), BUFFERS)
            .thenApply(results -> response.merge(results).build());
    }

    CompletableFuture<OffsetDeleteResponse> delete(
        RequestContext context, OffsetDeleteRequest request
    ) {
        OffsetDeleteResponse.Builder response = new OffsetDeleteResponse.Builder();
        OffsetDeleteRequestTopicCollection accepted = new OffsetDeleteRequestTopicCollection();
        for (OffsetDeleteRequestTopic topic : request.data().topics()) {
            if (!topics.contains(topic.name())) {
                response.addPartitions(
                    topic.name(),
                    topic.partitions(),
                    OffsetDeleteRequestPartition::partitionIndex,
                    Errors.UNKNOWN_TOPIC_OR_PARTITION);
                continue;
            }
            List<OffsetDeleteRequestPartition> known = known(
                topic.name(),
                topic.partitions(),
                OffsetDeleteRequestPartition::partitionIndex,
                index -> response.addPartition(
                    topic.name(), index, Errors.UNKNOWN_TOPIC_OR_PARTITION));
            if (!known.isEmpty()) {
                accepted.add(topic.duplicate().setPartitions(known));
            }
        }
        OffsetDeleteRequestData data = new OffsetDeleteRequestData()
            .setGroupId(request.data().groupId())
            .setTopics(accepted);
        // Unlike the others, also without a known partition: the group may be unknown.
        return coordinator.deleteOffsets(context, data, BUFFERS)
            .thenApply(results -> response.merge(results).build());
    }

    /** Returns the partitions that exist, and passes the indexes of the others to `reject`. */
    private <P> List<P> known(
        String topic,
        List<P> partitions,
        Function<P, Integer> index,
        IntConsumer reject
    ) {
        List<P> known = new ArrayList<>();
        for (P partition : partitions) {
            if (topics.contains(topic, index.apply(partition))) {
                known.add(partition);
            } else {
                reject.accept(index.apply(partition));
            }
        }
        return known;
    }

    // ------------------------------------------------------------ fetching

    CompletableFuture<OffsetFetchResponse> fetch(
        RequestContext context, OffsetFetchRequest request
    ) {
        List<CompletableFuture<OffsetFetchResponseGroup>> groups = new ArrayList<>();
        for (OffsetFetchRequestGroup group : request.groups()) {
            CompletableFuture<OffsetFetchResponseGroup> response =
                OffsetFetchRequest.requestAllOffsets(group)
                    ? fetchAll(context, group, request.requireStable())
                    : fetchSome(context, group, request.requireStable());
            groups.add(response.exceptionally(error -> OffsetFetchResponse.groupError(
                group, Errors.forException(Requests.cause(error)), request.version())));
        }
        return CompletableFuture.allOf(groups.toArray(new CompletableFuture<?>[0]))
            .thenApply(all -> new OffsetFetchResponse.Builder(
                groups.stream().map(CompletableFuture::join).collect(Collectors.toList()))
                .build(request.version()));
    }

    private CompletableFuture<OffsetFetchResponseGroup> fetchAll(
        RequestContext context, OffsetFetchRequestGroup group, boolean requireStable
    ) {
        boolean byId = OffsetFetchRequest.useTopicIds(context.apiVersion());
        return coordinator.fetchOffsets(context, group, requireStable).thenApply(response -> {
            if (response.errorCode() != Errors.NONE.code() || !byId) {
                return response;
            }
            List<OffsetFetchResponseTopics> known = new ArrayList<>();
            for (OffsetFetchResponseTopics topic : response.topics()) {
                if (topic.topicId().equals(Uuid.ZERO_UUID)) {
                    topic.setTopicId(topics.id(topic.name()));
                }
                if (!topic.topicId().equals(Uuid.ZERO_UUID)) {
                    known.add(topic);
                }
            }
            return response.setTopics(known);
        });
    }

    private CompletableFuture<OffsetFetchResponseGroup> fetchSome(
        RequestContext context, OffsetFetchRequestGroup group, boolean requireStable
    ) {
        boolean byId = OffsetFetchRequest.useTopicIds(context.apiVersion());
        List<OffsetFetchRequestTopics> known = new ArrayList<>();
        List<OffsetFetchResponseTopics> unknown = new ArrayList<>();
        for (OffsetFetchRequestTopics topic : group.topics()) {
            if (byId) {
                topic.setName(topics.name(topic.topicId()).orElse(""));
            }
            if (byId && topic.name().isEmpty()) {
                unknown.add(unknownTopic(topic));
            } else {
                known.add(topic);
            }
        }
        return coordinator
            .fetchOffsets(context, group.duplicate().setTopics(known), requireStable)
            .thenApply(response -> {
                if (response.errorCode() == Errors.NONE.code()) {
                    List<OffsetFetchResponseTopics> all = new ArrayList<>(response.topics());
                    all.addAll(unknown);
                    response.setTopics(all);
                }
                return response;
            });
    }

    private static OffsetFetchResponseTopics unknownTopic(OffsetFetchRequestTopics topic) {
        return new OffsetFetchResponseTopics()
            .setTopicId(topic.topicId())
            .setPartitions(topic.partitionIndexes().stream()
                .map(index -> new OffsetFetchResponsePartitions()
                    .setPartitionIndex(index)
                    .setCommittedOffset(OffsetFetchResponse.INVALID_OFFSET)
                    .setErrorCode(Errors.UNKNOWN_TOPIC_ID.code()))
                .collect(Collectors.toList()));
    }
}
