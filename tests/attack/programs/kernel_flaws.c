// Entry points of known kernel flaws, by name: Copy Fail (CVE-2026-31431), Dirty Frag (CVE-2026-43284, CVE-2026-43500)
// and Fragnesia (CVE-2026-46300). Each flaw writes to the page cache of files that the user may only read.
#include "foreign.h"
#include <linux/netlink.h>
#include <linux/udp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#define AF_RXRPC_FAMILY 33

int main(void)
{
    int pair[2], kind;
    answer("AF_ALG", CALL(socket, AF_ALG, SOCK_SEQPACKET, 0));
    answer("AF_ALG, more bits", CALL(socket, 0x100000000 | AF_ALG, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    answer("AF_ALG pair", CALL(socketpair, AF_ALG, SOCK_SEQPACKET, 0, pair));
    answer("io_uring, which makes sockets", CALL(io_uring_setup, 1, NULL));
    try_foreign_socket("AF_ALG by a 32-bit call", AF_ALG, SOCK_SEQPACKET);
    in_child("AF_ALG by an x32 call", 0x40000000 | SYS_socket, AF_ALG, SOCK_SEQPACKET, 0);

    answer("AF_RXRPC", CALL(socket, AF_RXRPC_FAMILY, SOCK_DGRAM, AF_INET));
    answer("AF_RXRPC over IPv6", CALL(socket, AF_RXRPC_FAMILY, SOCK_DGRAM, AF_INET6));
    answer("AF_RXRPC pair", CALL(socketpair, AF_RXRPC_FAMILY, SOCK_DGRAM, AF_INET, pair));
    answer("AF_KEY", CALL(socket, AF_KEY, SOCK_RAW, 2));
    answer("NETLINK_XFRM", CALL(socket, AF_NETLINK, SOCK_RAW, NETLINK_XFRM));
    answer("NETLINK_XFRM as datagrams", CALL(socket, AF_NETLINK, SOCK_DGRAM, NETLINK_XFRM));
    int udp = CALL(socket, AF_INET, SOCK_DGRAM, 0);
    kind = UDP_ENCAP_ESPINUDP;
    answer("ESP in UDP", setsockopt(udp, IPPROTO_UDP, UDP_ENCAP, &kind, sizeof kind));
    kind = UDP_ENCAP_L2TPINUDP;
    answer("L2TP in UDP", setsockopt(udp, IPPROTO_UDP, UDP_ENCAP, &kind, sizeof kind));
    answer("user and network namespace", CALL(unshare, CLONE_NEWUSER | CLONE_NEWNET));
    answer("user and network namespace by clone", CALL(clone, CLONE_NEWUSER | CLONE_NEWNET | SIGCHLD, 0, 0, 0, 0));
    answer("user and network namespace by clone3", CALL(clone3, NULL, 0));

    int tcp = CALL(socket, AF_INET, SOCK_STREAM, 0);
    answer("ESP in TCP", setsockopt(tcp, IPPROTO_TCP, TCP_ULP, "espintcp", 9));
    answer("TLS in TCP", setsockopt(tcp, IPPROTO_TCP, TCP_ULP, "tls", 4));
    answer("SMC in TCP", setsockopt(tcp, IPPROTO_TCP, TCP_ULP, "smc", 4));
    return 0;
}
