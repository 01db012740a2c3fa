// Tries to create sockets of every family, and raw sockets of the allowed families.
#include "attack.h"
#include <linux/netlink.h>
#include <netinet/in.h>

static int is_allowed(int family)
{
    return family == AF_UNIX || family == AF_INET || family == AF_INET6 || family == AF_NETLINK;
}

int main(void)
{
    int others = 0;
    for (int family = 0; family < 256; family++)
        for (int type = SOCK_STREAM; type <= SOCK_PACKET && !is_allowed(family); type++) {
            int pair[2];
            if (CALL(socket, family, type, 0) >= 0 || errno != EAFNOSUPPORT)
                printf("family %d type %d: made, or another error\n", family, type), others++;
            if (CALL(socketpair, family, type, 0, pair) >= 0 || errno != EAFNOSUPPORT)
                printf("pair of family %d type %d: made, or another error\n", family, type), others++;
        }
    printf("other families: %s\n", others ? "some" : "none");

    answer("AF_VSOCK", CALL(socket, AF_VSOCK, SOCK_STREAM, 0));
    answer("AF_VSOCK, more bits", CALL(socket, 0x100000000 | AF_VSOCK, SOCK_STREAM, 0));
    answer("AF_ALG", CALL(socket, AF_ALG, SOCK_SEQPACKET, 0));
    answer("AF_PACKET", CALL(socket, AF_PACKET, SOCK_RAW, 0));
    answer("AF_BLUETOOTH", CALL(socket, AF_BLUETOOTH, SOCK_RAW, 0));
    answer("AF_XDP", CALL(socket, AF_XDP, SOCK_RAW, 0));
    answer("netlink route", CALL(socket, AF_NETLINK, SOCK_RAW, NETLINK_ROUTE));
    static const struct {
        const char *name;
        int protocol;
    } links[] = {
        {"netlink audit", NETLINK_AUDIT},         {"netlink netfilter", NETLINK_NETFILTER},
        {"netlink sock_diag", NETLINK_SOCK_DIAG}, {"netlink xfrm", NETLINK_XFRM},
        {"netlink uevent", NETLINK_KOBJECT_UEVENT}, {"netlink generic", NETLINK_GENERIC},
        {"netlink crypto", NETLINK_CRYPTO},
    };
    for (size_t link = 0; link < sizeof links / sizeof *links; link++)
        answer(links[link].name, CALL(socket, AF_NETLINK, SOCK_RAW, links[link].protocol));

    answer("raw ICMP", CALL(socket, AF_INET, SOCK_RAW, IPPROTO_ICMP));
    answer("raw IP", CALL(socket, AF_INET, SOCK_RAW, IPPROTO_RAW));
    answer("raw ICMPv6", CALL(socket, AF_INET6, SOCK_RAW, IPPROTO_ICMPV6));
    answer("ping", CALL(socket, AF_INET, SOCK_DGRAM, IPPROTO_ICMP));
    answer("io_uring, which makes sockets too", CALL(io_uring_setup, 1, NULL));
    int plain = socket(AF_INET6, SOCK_DGRAM, 0);
    answer("IPv6 flow label", setsockopt(plain, IPPROTO_IPV6, 32, "", 0));
    answer("mark", setsockopt(plain, SOL_SOCKET, SO_MARK, &(int){1}, sizeof(int)));
    return 0;
}
