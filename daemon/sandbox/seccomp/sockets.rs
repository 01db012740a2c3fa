//! Filter rules for sockets: which sockets a command may make, and which options it may set.
//!
//! Checking the family is not enough. In AF_INET and AF_INET6 the kernel loads a module for
//! whatever protocol is requested (SCTP, DCCP, L2TP, SMC, UDP-Lite), each with flaws of its own. If
//! the protocol is 0, it derives it from the type, so the type is compared too. Another protocol or
//! type returns EPROTONOSUPPORT, as on a kernel without it. A raw socket returns EPERM, as without
//! the capability. Another family returns EAFNOSUPPORT.
//!
//! The kernel takes family, type and protocol as 32-bit numbers, so only 32 bits are compared.

use super::program::{
    ArgumentCondition, ArgumentDecision, ArgumentTest, REFUSE_EPERM, SyscallAction, SyscallVerdict,
};
use crate::daemon::sys::Errno;

/// The bits of a socket's type that are not flags (SOCK_TYPE_MASK).
pub(super) const SOCKET_TYPE_MASK: u32 = 0xf;

/// Allows sockets of this family, type and protocol.
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

/// Refuses sockets of this family, and optionally of one type only.
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

/// Action for socket(2) and socketpair(2).
pub(super) const SOCKET_ACTION: SyscallAction = SyscallAction::Decide(ArgumentDecision {
    tests: &[
        // The kernel checks its protocol: there is only one.
        ArgumentTest {
            all: &[ArgumentCondition::Equals(0, libc::AF_UNIX as u32)],
            then: SyscallVerdict::Allow,
        },
        // Protocol 0 means the default of the type: TCP, UDP.
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
        // ping without privileges, if net.ipv4.ping_group_range permits it.
        allow!(AF_INET, SOCK_DGRAM, IPPROTO_ICMP),
        allow!(AF_INET6, SOCK_DGRAM, IPPROTO_ICMPV6),
        refuse!(PERM, AF_INET, SOCK_RAW),
        refuse!(PERM, AF_INET6, SOCK_RAW),
        refuse!(PROTONOSUPPORT, AF_INET),
        refuse!(PROTONOSUPPORT, AF_INET6),
        // getifaddrs(3) uses rtnetlink.
        ArgumentTest {
            all: &[
                ArgumentCondition::Equals(0, libc::AF_NETLINK as u32),
                ArgumentCondition::Equals(2, libc::NETLINK_ROUTE as u32),
            ],
            then: SyscallVerdict::Allow,
        },
    ],
    // AF_VSOCK, AF_ALG, AF_PACKET and all others have a history of flaws, and commands do not need
    // them.
    otherwise: SyscallVerdict::Refuse(Errno::AFNOSUPPORT),
});

/// IPV6_FLOWLABEL_MGR, UDP_ENCAP and TCP_ULP. The libc crate lacks them, or has them only for some
/// levels.
const FLOW_LABEL: u32 = 32;
const UDP_ENCAP: u32 = 100;
const TCP_ULP: u32 = 31;

/// Refuses a socket option, by level and number.
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

/// Action for setsockopt(2).
pub(super) const SOCKET_OPTION_ACTION: SyscallAction = SyscallAction::Decide(ArgumentDecision {
    tests: &[
        // Labels stay in the network namespace, which the slot's next run gets.
        refuse_option!(IPPROTO_IPV6, FLOW_LABEL),
        // Puts another protocol on top of TCP: kTLS, ESP in TCP, SMC. TLS libraries work without
        // it.
        refuse_option!(IPPROTO_TCP, TCP_ULP),
        // Makes UDP carry ESP, L2TP and GTP. A UDP socket accepts its options at the level of
        // UDP-Lite too.
        refuse_option!(IPPROTO_UDP, UDP_ENCAP),
        refuse_option!(IPPROTO_UDPLITE, UDP_ENCAP),
    ],
    otherwise: SyscallVerdict::Allow,
});
