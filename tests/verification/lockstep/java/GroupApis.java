package kafkagroup.oracle;

import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.message.ConsumerGroupDescribeRequestData;
import org.apache.kafka.common.message.ConsumerGroupDescribeResponseData;
import org.apache.kafka.common.message.DeleteGroupsResponseData;
import org.apache.kafka.common.message.DescribeGroupsRequestData;
import org.apache.kafka.common.message.DescribeGroupsResponseData;
import org.apache.kafka.common.message.ShareGroupDescribeRequestData;
import org.apache.kafka.common.message.ShareGroupDescribeResponseData;
import org.apache.kafka.common.message.ShareGroupHeartbeatRequestData;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.requests.AbstractRequest;
import org.apache.kafka.common.requests.AbstractResponse;
import org.apache.kafka.common.requests.ConsumerGroupDescribeRequest;
import org.apache.kafka.common.requests.ConsumerGroupDescribeResponse;
import org.apache.kafka.common.requests.ConsumerGroupHeartbeatRequest;
import org.apache.kafka.common.requests.ConsumerGroupHeartbeatResponse;
import org.apache.kafka.common.requests.DeleteGroupsRequest;
import org.apache.kafka.common.requests.DeleteGroupsResponse;
import org.apache.kafka.common.requests.DescribeGroupsRequest;
import org.apache.kafka.common.requests.DescribeGroupsResponse;
import org.apache.kafka.common.requests.HeartbeatRequest;
import org.apache.kafka.common.requests.HeartbeatResponse;
import org.apache.kafka.common.requests.JoinGroupRequest;
import org.apache.kafka.common.requests.JoinGroupResponse;
import org.apache.kafka.common.requests.LeaveGroupRequest;
import org.apache.kafka.common.requests.LeaveGroupResponse;
import org.apache.kafka.common.requests.ListGroupsRequest;
import org.apache.kafka.common.requests.ListGroupsResponse;
import org.apache.kafka.common.requests.OffsetCommitRequest;
import org.apache.kafka.common.requests.OffsetDeleteRequest;
import org.apache.kafka.common.requests.OffsetFetchRequest;
import org.apache.kafka.common.requests.RequestContext;
import org.apache.kafka.common.requests.ShareGroupDescribeRequest;
import org.apache.kafka.common.requests.ShareGroupDescribeResponse;
import org.apache.kafka.common.requests.ShareGroupHeartbeatRequest;
import org.apache.kafka.common.requests.ShareGroupHeartbeatResponse;
import org.apache.kafka.common.requests.SyncGroupRequest;
import org.apache.kafka.common.requests.SyncGroupResponse;
import org.apache.kafka.common.requests.TxnOffsetCommitRequest;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.coordinator.group.GroupCoordinator;
import org.apache.kafka.security.authorizer.AclEntry;

/**
 * What a broker does between its network and its coordinator, with every right granted: it checks
 * some fields, and adds the operations that the client may perform. Offsets: see OffsetApis.
 */
final class GroupApis {
    private static final int LONGEST_MEMBER_ID = 36;
    private static final BufferSupplier BUFFERS = BufferSupplier.NO_CACHING;
    private static final int ALL_OPERATIONS = Utils.to32BitField(
        AclEntry.supportedOperations(ResourceType.GROUP).stream()
            .map(AclOperation::code)
            .collect(Collectors.toSet()));

    private final GroupCoordinator coordinator;
    private final OffsetApis offsets;

    GroupApis(GroupCoordinator coordinator, Topics topics) {
        this.coordinator = coordinator;
        this.offsets = new OffsetApis(coordinator, topics);
    }

    CompletableFuture<? extends AbstractResponse> handle(
        RequestContext context, AbstractRequest request
    ) {
        short version = request.version();
        return switch (request.apiKey()) {
            case JOIN_GROUP -> coordinator
                .joinGroup(context, ((JoinGroupRequest) request).data(), BUFFERS)
                .thenApply(data -> new JoinGroupResponse(data, version));
            case SYNC_GROUP -> syncGroup(context, (SyncGroupRequest) request);
            case HEARTBEAT -> coordinator
                .heartbeat(context, ((HeartbeatRequest) request).data())
                .thenApply(HeartbeatResponse::new);
            case LEAVE_GROUP -> coordinator
                .leaveGroup(context, ((LeaveGroupRequest) request).normalizedData())
                .thenApply(data -> new LeaveGroupResponse(data, version));
            case CONSUMER_GROUP_HEARTBEAT -> coordinator
                .consumerGroupHeartbeat(context, ((ConsumerGroupHeartbeatRequest) request).data())
                .thenApply(ConsumerGroupHeartbeatResponse::new);
            case SHARE_GROUP_HEARTBEAT ->
                shareGroupHeartbeat(context, ((ShareGroupHeartbeatRequest) request).data());
            case OFFSET_COMMIT -> offsets.commit(context, (OffsetCommitRequest) request);
            case TXN_OFFSET_COMMIT -> offsets.commit(context, (TxnOffsetCommitRequest) request);
            case OFFSET_FETCH -> offsets.fetch(context, (OffsetFetchRequest) request);
            case OFFSET_DELETE -> offsets.delete(context, (OffsetDeleteRequest) request);
            case LIST_GROUPS -> coordinator
                .listGroups(context, ((ListGroupsRequest) request).data())
                .thenApply(ListGroupsResponse::new);
            case DESCRIBE_GROUPS ->
                describeGroups(context, ((DescribeGroupsRequest) request).data());
            case CONSUMER_GROUP_DESCRIBE ->
                consumerGroupDescribe(context, ((ConsumerGroupDescribeRequest) request).data());
            case SHARE_GROUP_DESCRIBE ->
                shareGroupDescribe(context, ((ShareGroupDescribeRequest) request).data());
            case DELETE_GROUPS -> coordinator
                .deleteGroups(
                    context,
                    ((DeleteGroupsRequest) request).data().groupsNames().stream().distinct()
                        .collect(Collectors.toList()),
                    BUFFERS)
                .thenApply(results -> new DeleteGroupsResponse(
                    new DeleteGroupsResponseData().setResults(results)));
            default -> throw new IllegalArgumentException(
                "not a request to a group coordinator: " + request.apiKey());
        };
    }

    private CompletableFuture<? extends AbstractResponse> syncGroup(
        RequestContext context, SyncGroupRequest request
    ) {
        if (!request.areMandatoryProtocolTypeAndNamePresent()) {
            return CompletableFuture.failedFuture(Errors.INCONSISTENT_GROUP_PROTOCOL.exception());
        }
        return coordinator.syncGroup(context, request.data(), BUFFERS)
            .thenApply(SyncGroupResponse::new);
    }

    private CompletableFuture<ShareGroupHeartbeatResponse> shareGroupHeartbeat(
        RequestContext context, ShareGroupHeartbeatRequestData data
    ) {
        if (data.memberId().isEmpty() || data.memberId().length() > LONGEST_MEMBER_ID) {
            return CompletableFuture.failedFuture(
                Errors.INVALID_REQUEST.exception("Invalid member id in the request."));
        }
        return coordinator.shareGroupHeartbeat(context, data)
            .thenApply(ShareGroupHeartbeatResponse::new);
    }

    private CompletableFuture<DescribeGroupsResponse> describeGroups(
        RequestContext context, DescribeGroupsRequestData data
    ) {
        return coordinator.describeGroups(context, data.groups()).thenApply(groups -> {
            for (DescribeGroupsResponseData.DescribedGroup group : groups) {
                if (data.includeAuthorizedOperations() && group.errorCode() == 0) {
                    group.setAuthorizedOperations(ALL_OPERATIONS);
                }
            }
            return new DescribeGroupsResponse(new DescribeGroupsResponseData().setGroups(groups));
        });
    }

    private CompletableFuture<ConsumerGroupDescribeResponse> consumerGroupDescribe(
        RequestContext context, ConsumerGroupDescribeRequestData data
    ) {
        return coordinator.consumerGroupDescribe(context, data.groupIds()).thenApply(groups -> {
            for (ConsumerGroupDescribeResponseData.DescribedGroup group : groups) {
                if (data.includeAuthorizedOperations() && group.errorCode() == 0) {
                    group.setAuthorizedOperations(ALL_OPERATIONS);
                }
            }
            return new ConsumerGroupDescribeResponse(
                new ConsumerGroupDescribeResponseData().setGroups(groups));
        });
    }

    private CompletableFuture<ShareGroupDescribeResponse> shareGroupDescribe(
        RequestContext context, ShareGroupDescribeRequestData data
    ) {
        return coordinator.shareGroupDescribe(context, data.groupIds()).thenApply(groups -> {
            for (ShareGroupDescribeResponseData.DescribedGroup group : groups) {
                if (data.includeAuthorizedOperations() && group.errorCode() == 0) {
                    group.setAuthorizedOperations(ALL_OPERATIONS);
                }
            }
            return new ShareGroupDescribeResponse(
                new ShareGroupDescribeResponseData().setGroups(groups));
        });
    }
}
