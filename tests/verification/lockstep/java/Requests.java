package kafkagroup.oracle;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.util.concurrent.CompletionException;
import org.apache.kafka.common.network.ClientInformation;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.requests.AbstractResponse;
import org.apache.kafka.common.requests.RequestContext;
import org.apache.kafka.common.requests.RequestHeader;
import org.apache.kafka.common.requests.RequestUtils;
import org.apache.kafka.common.requests.ResponseHeader;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;

/** Requests from bytes and responses to bytes, as the broker's network layer does. */
final class Requests {
    private static final InetAddress CLIENT = client();

    /** Reads the header; the body is left in `bytes`. The client is on this machine. */
    static RequestContext context(ByteBuffer bytes) {
        return new RequestContext(
            RequestHeader.parse(bytes),
            "127.0.0.1:9092-127.0.0.1:50000-0",
            CLIENT,
            KafkaPrincipal.ANONYMOUS,
            ListenerName.forSecurityProtocol(SecurityProtocol.PLAINTEXT),
            SecurityProtocol.PLAINTEXT,
            ClientInformation.EMPTY,
            false);
    }

    /** An address without a name, as that of a socket: a name would be described. */
    private static InetAddress client() {
        try {
            return InetAddress.getByAddress(new byte[] {127, 0, 0, 1});
        } catch (UnknownHostException error) {
            throw new IllegalStateException(error);
        }
    }

    static byte[] serialize(RequestContext context, AbstractResponse response) {
        ResponseHeader header = context.header.toResponseHeader();
        ByteBuffer bytes = RequestUtils.serialize(
            header.data(), header.headerVersion(), response.data(), context.header.apiVersion());
        byte[] copy = new byte[bytes.remaining()];
        bytes.get(copy);
        return copy;
    }

    /** Returns the error that made a future fail. */
    static Throwable cause(Throwable error) {
        return error instanceof CompletionException && error.getCause() != null
            ? error.getCause()
            : error;
    }

    private Requests() {}
}
