package kafkagroup.oracle;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import org.apache.kafka.common.errors.InvalidRequestException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.requests.AbstractRequest;
import org.apache.kafka.common.requests.AbstractResponse;
import org.apache.kafka.common.requests.RequestContext;
import org.apache.kafka.coordinator.group.CoordinatorFactory;
import org.apache.kafka.coordinator.group.GroupCoordinator;

/** One broker's coordinator, from its start. */
final class World {
    static final int NODE = 1;
    private static final int PARTITION = 0;

    /** A response; without context and body if a broker closes the connection. */
    record Completed(int ticket, RequestContext context, AbstractResponse response) {
        byte[] bytes() {
            return context == null ? new byte[0] : Requests.serialize(context, response);
        }
    }

    private final VirtualTime time = new VirtualTime();
    private final EventQueue events = new EventQueue();
    private final Topics topics = new Topics();
    private final GroupCoordinator coordinator;
    private final GroupApis apis;
    private int epoch = 1;
    private List<Completed> completed = new ArrayList<>();

    World(Map<String, String> settings) {
        coordinator = CoordinatorFactory.create(settings, new OffsetsTopic(), time, events);
        apis = new GroupApis(coordinator, topics);
        coordinator.onElection(PARTITION, epoch);
        publish(topics.start());
        settle();
    }

    /** Lets the coordinator resign, and load the groups that it has written. */
    void reload() {
        coordinator.onResignation(PARTITION, OptionalInt.of(++epoch));
        settle();
        coordinator.onElection(PARTITION, ++epoch);
        settle();
    }

    void submit(int ticket, ByteBuffer bytes) {
        RequestContext context;
        AbstractRequest request;
        try {
            context = Requests.context(bytes);
            request = context.parseRequest(bytes).request;
        } catch (InvalidRequestException | UnsupportedVersionException refused) {
            completed.add(new Completed(ticket, null, null));
            return;
        }
        apis.handle(context, request).whenComplete((response, error) ->
            completed.add(new Completed(
                ticket,
                context,
                error == null ? response : request.getErrorResponse(Requests.cause(error)))));
        settle();
    }

    /** Runs the timers of this time in order, each with all that follows from it. */
    void advance(long milliseconds) {
        long endMs = time.milliseconds() + milliseconds;
        while (time.runNext(endMs)) {
            settle();
        }
        time.moveTo(endMs);
    }

    void setTopics(Map<String, Topics.Topic> next) {
        publish(topics.replace(next));
        settle();
    }

    /** Returns the responses that completed since the last call, in order. */
    List<Completed> takeCompleted() {
        List<Completed> taken = completed;
        completed = new ArrayList<>();
        return taken;
    }

    /** Returns the milliseconds until the next timer. */
    long untilNextTimer() {
        return time.nextMs() - time.milliseconds();
    }

    private void publish(Topics.Update update) {
        // It waits until the offsets of deleted topics are deleted.
        events.runWithEvents(
            () -> coordinator.onMetadataUpdate(update.delta(), update.image()));
    }

    private void settle() {
        do {
            events.run();
        } while (time.runNext(time.milliseconds()));
    }
}
