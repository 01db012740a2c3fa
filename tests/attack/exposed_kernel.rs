//! Parts of the kernel that commands hardly need, and parts with known flaws.

use crate::support::{
    Daemon, FOREIGN_CALL_ANSWERS, Setup, argv, check_answers, compile_in_workspace,
};

/// Setups whose commands can create sockets: at L3 and L2, as root and as another user, without a
/// network and in the host's.
fn setups_with_sockets() -> [Setup; 4] {
    [
        Setup::new(),
        Setup::new().user(12345),
        Setup::new().at_l2(),
        Setup::new().arguments(&["--network", "host"]),
    ]
}

/// Whether a command can create sockets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SocketSupport {
    Available,
    Unavailable,
}

/// Checks the answers to `program`: those in `always`, and those in `socket_answers`, whose third
/// column holds the answers without socket support (at L1).
async fn check_program(
    daemon: &Daemon,
    program: &str,
    always: &[(&str, &str)],
    sockets: SocketSupport,
    socket_answers: &[(&str, &str, &str)],
) {
    let socket_answers = socket_answers.iter().map(|(attempt, answer, without)| {
        let answer = match sockets {
            SocketSupport::Available => answer,
            SocketSupport::Unavailable => without,
        };
        (*attempt, *answer)
    });

    let expected: Vec<_> = socket_answers.chain(always.iter().copied()).collect();
    let program = compile_in_workspace(daemon, program);
    check_answers(&daemon.run(argv(&[&program])).await, &expected);
}

/// Answers to `kernel_surface.c` that depend on socket support: the attempt, the answer with
/// sockets, and the answer without.
const PROTOCOL_ANSWERS: &[(&str, &str, &str)] = &[
    ("other protocols", "EPROTONOSUPPORT", "EAFNOSUPPORT"),
    ("other protocols, with flags", "EPROTONOSUPPORT", "EAFNOSUPPORT"),
    ("other protocols, more bits", "EPROTONOSUPPORT", "EAFNOSUPPORT"),
    ("raw", "EPERM", "EAFNOSUPPORT"),
    ("raw IPv6", "EPERM", "EAFNOSUPPORT"),
    ("TCP", "ok", "EAFNOSUPPORT"),
    ("UDP", "ok", "EAFNOSUPPORT"),
    ("TCP over IPv6", "ok", "EAFNOSUPPORT"),
    ("UDP, more bits", "ok", "EAFNOSUPPORT"),
    // The kernel may lack it, or refuse it to the user.
    ("MPTCP", "ok|ENOPROTOOPT", "EAFNOSUPPORT"),
    ("listen with MPTCP", "ok|EBADF", "EPERM"),
    ("ping", "ok|EACCES", "EAFNOSUPPORT"),
    ("ping IPv6", "ok|EACCES", "EAFNOSUPPORT"),
    ("TCP_NODELAY", "ok", "EBADF"),
    ("UDP_GRO", "ok", "EBADF"),
];

fn surface_answers() -> Vec<(String, &'static str)> {
    let mut expected: Vec<(String, &str)> = Vec::new();
    for flags in ["", ", more bits", ", at exec"] {
        expected.push((format!("close_range with a new table{flags}"), "EINVAL"));
    }

    for attempt in [
        "thread with descriptors of its own",
        "thread with descriptors of its own, more bits",
        "TCP_ULP",
        "TCP_ULP, more bits",
        "TCP_ULP of MPTCP",
        "UDP_ENCAP, more bits",
        "merge all",
        "merge all, more bits",
        "merge a page",
        "merge a page, more bits",
        "merge a page by process_madvise",
        "priority of init",
        "priority of init, more bits",
        "priority of init's group",
        "priority of the user",
        "priority of the user by number",
        "priority of the user, more bits",
        "i/o priority of init",
        "i/o priority of init, more bits",
        "i/o priority of init's group",
        "group of init",
        "group of init, more bits",
        "i/o priority of the user",
        "i/o priority of the user by number",
        // This architecture does not have the call.
        "io_pgetevents_time64",
    ] {
        expected.push((attempt.to_owned(), "EPERM"));
    }

    for kind in 1..8 {
        expected.push((format!("UDP_ENCAP {kind}"), "EPERM"));
        expected.push((format!("UDP_ENCAP {kind} as UDP-Lite"), "EPERM"));
    }

    for discipline in [0, 27] {
        for end in ["master", "slave"] {
            expected.push((format!("discipline {discipline} on {end}"), "EPERM"));
            expected.push((format!("discipline {discipline} on {end}, more bits"), "EPERM"));
        }
    }

    for call in [
        "io_setup",
        "io_submit",
        "io_getevents",
        "io_pgetevents",
        "io_cancel",
        "io_destroy",
        "memfd_secret",
    ] {
        expected.push((call.to_owned(), "ENOSYS"));
    }

    for attempt in [
        "close_range",
        "drop a page",
        "init is as it was",
        "own priority",
        "own group's priority",
        "own i/o priority",
    ] {
        expected.push((attempt.to_owned(), "ok"));
    }

    expected
}

async fn check_kernel_surface(setup: Setup, sockets: SocketSupport) {
    let daemon = setup.start().await;
    let always = surface_answers();
    let always: Vec<_> =
        always.iter().map(|(attempt, answer)| (attempt.as_str(), *answer)).collect();
    check_program(&daemon, "kernel_surface", &always, sockets, PROTOCOL_ANSWERS).await;
}

#[tokio::test]
async fn case_n3b_command_reaches_little_kernel_surface() {
    for setup in setups_with_sockets() {
        check_kernel_surface(setup, SocketSupport::Available).await;
    }
}

#[tokio::test]
async fn case_n3b_command_reaches_little_kernel_surface_at_l1() {
    check_kernel_surface(Setup::new().at_l1(), SocketSupport::Unavailable).await;
}

#[tokio::test]
async fn case_n3b_debugger_cannot_merge_pages() {
    let daemon = Setup::new().workspace_table("[sandbox]\nallow_ptrace = true");
    check_kernel_surface(daemon, SocketSupport::Available).await;
}

/// Answers to `kernel_flaws.c`, the same at every level.
const KERNEL_FLAW_ANSWERS: &[(&str, &str)] = &[
    // Copy Fail.
    ("AF_ALG", "EAFNOSUPPORT"),
    ("AF_ALG, more bits", "EAFNOSUPPORT"),
    ("AF_ALG pair", "EAFNOSUPPORT"),
    ("io_uring, which makes sockets", "ENOSYS"),
    ("AF_ALG by a 32-bit call", FOREIGN_CALL_ANSWERS),
    ("AF_ALG by an x32 call", "ENOSYS|SIGSYS"),
    // Dirty Frag.
    ("AF_RXRPC", "EAFNOSUPPORT"),
    ("AF_RXRPC over IPv6", "EAFNOSUPPORT"),
    ("AF_RXRPC pair", "EAFNOSUPPORT"),
    ("AF_KEY", "EAFNOSUPPORT"),
    ("NETLINK_XFRM", "EAFNOSUPPORT"),
    ("NETLINK_XFRM as datagrams", "EAFNOSUPPORT"),
    ("ESP in UDP", "EPERM"),
    ("L2TP in UDP", "EPERM"),
    ("user and network namespace", "EPERM"),
    ("user and network namespace by clone", "EPERM"),
    ("user and network namespace by clone3", "ENOSYS"),
    // Fragnesia.
    ("ESP in TCP", "EPERM"),
    ("TLS in TCP", "EPERM"),
    ("SMC in TCP", "EPERM"),
];

#[tokio::test]
async fn cases_n1_n2_and_n3_command_cannot_reach_known_kernel_flaws() {
    for setup in setups_with_sockets().into_iter().chain([Setup::new().at_l1()]) {
        let daemon = setup.start().await;
        check_program(&daemon, "kernel_flaws", KERNEL_FLAW_ANSWERS, SocketSupport::Available, &[])
            .await;
    }
}
