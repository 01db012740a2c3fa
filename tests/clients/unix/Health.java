import io.grpc.health.v1.HealthCheckRequest;
import io.grpc.health.v1.HealthGrpc;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollDomainSocketChannel;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollEventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.unix.DomainSocketAddress;
import java.util.concurrent.TimeUnit;

/** Checks the health of a daemon on a Unix socket, 100 times on one connection, without an option. */
class Health {
  public static void main(String[] arguments) throws Exception {
    var group = new EpollEventLoopGroup(1);
    var channel =
        NettyChannelBuilder.forAddress(new DomainSocketAddress(arguments[0]))
            .eventLoopGroup(group)
            .channelType(EpollDomainSocketChannel.class)
            .usePlaintext()
            .build();
    try {
      var request = HealthCheckRequest.getDefaultInstance();
      for (int number = 1; number < 100; number++) {
        HealthGrpc.newBlockingStub(channel).withDeadlineAfter(20, TimeUnit.SECONDS).check(request);
      }
      System.out.println(HealthGrpc.newBlockingStub(channel).check(request).getStatus());
    } finally {
      channel.shutdownNow();
      group.shutdownGracefully();
    }
  }
}
