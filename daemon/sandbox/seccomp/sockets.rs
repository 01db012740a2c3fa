//! Which sockets a command may make, and which of their options it may set.
//!
//! A family alone is not enough: in AF_INET and AF_INET6 the kernel loads a module for whatever
//! protocol a socket is asked for (SCTP, DCCP, L2TP, SMC, UDP-Lite), each with flaws of its own, and
//! takes the type for the protocol where that is 0: so the type is compared too. Another protocol or
//! type answers EPROTONOSUPPORT, as a kernel without it does; a raw socket EPERM, as a user without
//! the capability gets; another family EAFNOSUPPORT.
//!
//! The kernel takes family, type and protocol as 32-bit numbers, so that no more bits are compared.

use super::program::{
    ArgumentCondition, ArgumentDecision, ArgumentTest, REFUSE_EPERM, SyscallAction, SyscallVerdict,
};
use crate::daemon::sys::Errno;

/// The bits of a socket's type that are not flags (SOCK_TYPE_MASK).
pub(super) const SOCKET_TYPE_MASK: u32 = 0xf;

/// A socket that may be made: its family, type and protocol.
macro_rules! allow {
    ($family:ident, $kind:ident, $protocol:ident) => {
        ArgumentTest {
            all: &[
                ArgumentCondition::Equals(0, libc::$family as u32),
                ArgumentCondition::MaskedEquals(1, SOCKET_TYPE_MASK, libc::$kind as u32),
                ArgumentCondition::Equals(2, libc::$protocol as u32),
            ],
            then: SyscallVerdict::Allow,
        }
    };
}

/// What answers an error: a family, and perhaps a type of it.
macro_rules! refuse {
    ($errno:ident, $family:ident) => {
        ArgumentTest {
            all: &[ArgumentCondition::Equals(0, libc::$family as u32)],
            then: SyscallVerdict::Refuse(Errno::$errno),
        }
    };
    ($errno:ident, $family:ident, $kind:ident) => {
        ArgumentTest {
            all: &[
                ArgumentCondition::Equals(0, libc::$family as u32),
                ArgumentCondition::MaskedEquals(1, SOCKET_TYPE_MASK, libc::$kind as u32),
            ],
            then: SyscallVerdict::Refuse(Errno::$errno),
        }
    };
}

/// Sockets that a command may make, for socket(2) and socketpair(2).
pub(super) const SOCKET_ACTION: SyscallAction = SyscallAction::Decide(ArgumentDecision {
    tests: &[
        // Its protocol is checked by the kernel: there is one.
        ArgumentTest {
            all: &[ArgumentCondition::Equals(0, libc::AF_UNIX as u32)],
            then: SyscallVerdict::Allow,
        },
        // The protocol 0 is the one that the type has: TCP, UDP.
        allow!(AF_INET, SOCK_STREAM, IPPROTO_IP),
        allow!(AF_INET, SOCK_STREAM, IPPROTO_TCP),
        allow!(AF_INET, SOCK_DGRAM, IPPROTO_IP),
        allow!(AF_INET, SOCK_DGRAM, IPPROTO_UDP),
        allow!(AF_INET6, SOCK_STREAM, IPPROTO_IP),
        allow!(AF_INET6, SOCK_STREAM, IPPROTO_TCP),
        allow!(AF_INET6, SOCK_DGRAM, IPPROTO_IP),
        allow!(AF_INET6, SOCK_DGRAM, IPPROTO_UDP),
        // Go listens with it.
        allow!(AF_INET, SOCK_STREAM, IPPROTO_MPTCP),
        allow!(AF_INET6, SOCK_STREAM, IPPROTO_MPTCP),
        // ping without privilege, where net.ipv4.ping_group_range lets it.
        allow!(AF_INET, SOCK_DGRAM, IPPROTO_ICMP),
        allow!(AF_INET6, SOCK_DGRAM, IPPROTO_ICMPV6),
        refuse!(PERM, AF_INET, SOCK_RAW),
        refuse!(PERM, AF_INET6, SOCK_RAW),
        refuse!(PROTONOSUPPORT, AF_INET),
        refuse!(PROTONOSUPPORT, AF_INET6),
        // getifaddrs(3) asks rtnetlink.
        ArgumentTest {
            all: &[
                ArgumentCondition::Equals(0, libc::AF_NETLINK as u32),
                ArgumentCondition::Equals(2, libc::NETLINK_ROUTE as u32),
            ],
            then: SyscallVerdict::Allow,
        },
    ],
    // AF_VSOCK, AF_ALG, AF_PACKET and all others have a history of holes and no use here.
    otherwise: SyscallVerdict::Refuse(Errno::AFNOSUPPORT),
});

/// IPV6_FLOWLABEL_MGR, UDP_ENCAP, TCP_ULP: not in the libc crate, or not on all levels.
const FLOW_LABEL: u32 = 32;
const UDP_ENCAP: u32 = 100;
const TCP_ULP: u32 = 31;

/// An option that may not be set: its level and number.
macro_rules! refuse_option {
    ($level:ident, $option:ident) => {
        ArgumentTest {
            all: &[
                ArgumentCondition::Equals(1, libc::$level as u32),
                ArgumentCondition::Equals(2, $option),
            ],
            then: REFUSE_EPERM,
        }
    };
}

/// Options that a command may set.
pub(super) const SOCKET_OPTION_ACTION: SyscallAction = SyscallAction::Decide(ArgumentDecision {
    tests: &[
        // Labels stay in the network namespace, which the slot's next run gets.
        refuse_option!(IPPROTO_IPV6, FLOW_LABEL),
        // Puts another protocol on top of TCP: kTLS, ESP-in-TCP, SMC. TLS libraries do without.
        refuse_option!(IPPROTO_TCP, TCP_ULP),
        // Has UDP carry ESP, L2TP and GTP. A UDP socket takes its options on the level of UDP-Lite too.
        refuse_option!(IPPROTO_UDP, UDP_ENCAP),
        refuse_option!(IPPROTO_UDPLITE, UDP_ENCAP),
    ],
    otherwise: SyscallVerdict::Allow,
});
