//! Traces of a run in its network namespace, which the slot's next run reuses. The next run can see
//! and use nothing of them, except counters.

use std::collections::HashSet;

use crate::support::{
    Daemon, Mark, Setup, TestNetwork, argv, eventually, shell, start_http_server,
};

const ALLOWED_HOST: (&str, &str) = ("packages.jig.test", "203.0.113.10");

/// Prints everything that a command can find out about its network, except counters, inode numbers
/// and the kernel's own sockets.
const INSPECT_SCRIPT: &str = r#"
import os, re, socket, struct, subprocess
print(os.readlink('/proc/self/ns/net'))
# Using the interface creates three neighbours that do not exist, the same in every run.
six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
six.sendto(b'', ('::1', 9))
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'', ('127.0.0.1', 9))
group = socket.inet_pton(socket.AF_INET6, 'ff02::fb') + struct.pack('i', 1)
for option in (socket.IPV6_JOIN_GROUP, socket.IPV6_LEAVE_GROUP):
    six.setsockopt(socket.IPPROTO_IPV6, option, group)
six.close()
COUNTERS = {'netstat', 'snmp', 'snmp6', 'dev', 'dev_snmp6', 'softnet_stat', 'sockstat', 'sockstat6', 'protocols', 'stat', 'rt6_stats', 'xfrm_stat', 'fib_triestat'}
for directory, directories, files in os.walk('/proc/self/net'):
    directories[:] = [name for name in directories if name not in COUNTERS]
    for name in sorted(set(files) - COUNTERS):
        try:
            lines = open(os.path.join(directory, name)).read().splitlines()
        except OSError as error:
            lines = [error.strerror]
        if re.fullmatch('(tcp|udp|udplite|raw|icmp)6?', name):
            lines = [' '.join(line.split()[1:4]) for line in lines]
        if name == 'netlink':
            lines = ['pid ' + line.split()[2] for line in lines if line.split()[2] not in ('0', str(os.getpid()))]
        if name == 'route':
            lines = [re.sub(r'\s+', ' ', line) for line in lines]
        if name == 'ipv6_route': # reference and use counts
            lines = [' '.join(line.split()[:6] + line.split()[8:]) for line in lines]
        print(name, *lines, sep='\n  ')
for directory, directories, files in os.walk('/proc/sys/net'):
    directories.sort()
    for name in sorted(files):
        try:
            print(os.path.join(directory, name), open(os.path.join(directory, name)).read().strip())
        except OSError as error:
            print(os.path.join(directory, name), error.strerror)
for words in ('address', '-4 route show table all', '-6 route show table all', '-4 route show cache', '-6 route show cache', 'rule', '-6 rule',
              'neighbour show nud all', 'neighbour show proxy', 'maddress', 'mroute'):
    output = subprocess.run(['ip', *words.split()], capture_output=True, text=True).stdout
    print('ip', words, output)
end = socket.socket()
print('fast open key', len(end.getsockopt(socket.IPPROTO_TCP, 33, 64)))
# The kernel remembers the addresses to which TCP Fast Open has failed, and no list shows them.
end.bind(('127.9.0.1', 0))
end.listen()
try:
    socket.socket().sendto(b'left', 0x20000000, end.getsockname())
    print('fast open is allowed')
except OSError as error:
    print('fast open:', error.strerror)
for name in (b'\0left', b'\0left datagrams'):
    try:
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM if b'datagrams' in name else socket.SOCK_STREAM).connect(name)
        print(name, 'exists')
    except ConnectionRefusedError:
        pass
for kind, protocol in ((socket.SOCK_STREAM, 0), (socket.SOCK_STREAM, 262), (socket.SOCK_DGRAM, 0), (socket.SOCK_DGRAM, 136)):
    for family, address in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')):
        for port in [*range(27100, 27130)]:
            try:
                socket.socket(family, kind, protocol).bind((address, port))
            except OSError as error:
                print(protocol, address, port, error.strerror)
"#;

/// Leaves in its network everything that a run can leave there: sockets of all kinds in all states,
/// with unread data. A process that outlives the command holds most of them; only a message in
/// flight holds the others.
const LEAVE_SCRIPT: &str = r#"
import array, os, signal, socket, struct, subprocess, sys, time
print(os.readlink('/proc/self/ns/net'))
V4, V6 = ('127.0.0.1', socket.AF_INET), ('::1', socket.AF_INET6)
ends = []
# Outside the kernel's own choice (ip_local_port_range).
port = iter(range(27100, 27130))
def keep(end):
    ends.append(end)
    return end
def listening(address, family, backlog=1, protocol=0, options=()):
    end = keep(socket.socket(family, socket.SOCK_STREAM, protocol))
    for option in options:
        end.setsockopt(*option)
    end.bind((address, next(port)))
    end.listen(backlog)
    return end
def connected(to, protocol=0):
    end = keep(socket.socket(to.family, socket.SOCK_STREAM, protocol))
    end.connect(to.getsockname())
    return end
for address, family in (V4, V6):
    # Closed by the listener, closed by the client, reset, and left open with unread data.
    server = listening(address, family, 20)
    for how in range(4):
        client = connected(server)
        accepted = keep(server.accept()[0])
        client.send(b'left'), accepted.send(b'left')
        if how == 2:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        if how < 3:
            (client if how else accepted).close()
            time.sleep(0.001)
            (accepted if how else client).close()
    connected(server).send(b'not accepted')
    # A connection that the listener does not know yet.
    connected(listening(address, family, options=[(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 60)]))
    # More connections than the backlog holds.
    server = listening(address, family, 0)
    for _ in range(20):
        end = keep(socket.socket(family))
        end.setblocking(False)
        end.connect_ex(server.getsockname())
    fast = listening(address, family, options=[(socket.IPPROTO_TCP, 23, 5)])
    end = keep(socket.socket(family))
    end.settimeout(0.2)
    try:
        end.sendto(b'left', 0x20000000, fast.getsockname())
    except OSError:
        pass
    try:
        multipath = listening(address, family, 5, 262)
        connected(multipath, 262).send(b'left')
        keep(multipath.accept()[0]).send(b'left')
    except OSError as error:
        print('multipath', error)
    receiver = keep(socket.socket(family, socket.SOCK_DGRAM))
    receiver.bind((address, next(port)))
    for _ in range(20):
        keep(socket.socket(family, socket.SOCK_DGRAM)).sendto(b'left', receiver.getsockname())
# Neighbours and multicast groups.
datagrams = keep(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
datagrams.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton('127.0.0.1'))
six = keep(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
def attempt(call):
    try:
        call()
    except OSError:
        pass
for last in range(100, 120):
    attempt(lambda: datagrams.sendto(b'left', (f'127.9.9.{last}', 9)))
    attempt(lambda: datagrams.sendto(b'left', (f'224.9.9.{last}', 9)))
    attempt(lambda: datagrams.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(f'224.9.9.{last}') + socket.inet_aton('127.0.0.1')))
    attempt(lambda: six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, 1))
    attempt(lambda: six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.inet_pton(socket.AF_INET6, f'ff02::{last}') + struct.pack('i', 1)))
    for prefix in ('ff01', 'ff02', 'ff12', 'fe80', 'fd00', '2001:db8'):
        attempt(lambda: six.sendto(b'left', (f'{prefix}::{last}', 9, 0, 1)))
attempt(lambda: datagrams.sendto(b'left', ('127.255.255.255', 9)))
# Settings that a command must not change.
for words in ('link set lo down', 'link set lo mtu 1500', 'address add 127.5.5.5/8 dev lo', 'route add blackhole 10.0.0.0/8', 'rule add prio 7 table 7',
              'neighbour add 127.7.7.7 lladdr 02:00:00:00:00:01 dev lo', 'link add left type dummy', '-6 route add blackhole fd00::/8', 'tcp_metrics flush', 'netns add left'):
    assert subprocess.run(['ip', *words.split()], capture_output=True).returncode, words
for directory, _, files in os.walk('/proc/sys/net'):
    for name in files:
        try:
            os.open(os.path.join(directory, name), os.O_WRONLY)
        except OSError:
            continue
        raise Exception(name)
# Abstract Unix sockets with unread messages.
for name, kind in ((b'\0left', socket.SOCK_STREAM), (b'\0left datagrams', socket.SOCK_DGRAM)):
    end = keep(socket.socket(socket.AF_UNIX, kind))
    end.bind(name)
    if kind == socket.SOCK_STREAM:
        end.listen(5)
    client = keep(socket.socket(socket.AF_UNIX, kind))
    client.connect(name)
    client.send(b'left')
# Kernel notifications.
keep(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)).bind((0, 0xffff))
# The proxy, if any: whole and partial requests whose responses no client reads.
for number in range(100):
    end = keep(socket.socket())
    end.setblocking(False)
    end.connect_ex(('127.0.0.1', 3128))
    attempt(lambda: end.send(b'GET http://packages.jig.test/left HTTP/1.1\r\nHost: packages.jig.test\r\n' + b'\r\n' * (number % 2)))
# Held only by messages, each in flight to the other's socket.
in_flight = [listening(*V4), listening(*V6)]
in_flight.append(connected(in_flight[0]))
def send(over, sockets):
    over.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [end.fileno() for end in sockets]))])
first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
send(first, [first, second] + in_flight), send(second, [first, second] + in_flight)
for end in in_flight + [first, second]:
    end.close()
if os.fork() == 0:
    os.setsid()
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    while True:
        time.sleep(1000)
"#;

/// The network modes in which each run has its own network namespace.
fn network_modes(test_network: &TestNetwork) -> [(&'static str, Setup); 2] {
    [
        ("none", test_network.setup()),
        ("proxy", test_network.proxy_setup(&[ALLOWED_HOST.0], &[ALLOWED_HOST.1])),
    ]
}

async fn network_of_next_run(daemon: &Daemon) -> String {
    daemon.output(shell("readlink /proc/self/ns/net")).await
}

#[tokio::test]
async fn case_63_run_leaves_nothing_in_a_reused_network() {
    let test_network = TestNetwork::with_hosts(&[ALLOWED_HOST]);
    for (mode, setup) in network_modes(&test_network) {
        let daemon = setup.start().await;
        start_http_server(&daemon, ALLOWED_HOST.1, 80, None);
        let inspect_request = || argv(&["python3", "-c", INSPECT_SCRIPT]);
        let inspect = async || {
            let text = daemon.output(inspect_request()).await;
            let (network, state) = text.split_once('\n').unwrap();
            (network.to_owned(), state.to_owned())
        };
        let (_, before) = inspect().await;
        let mut reuse_count = 0;
        for line in ["ip address", "/proc/sys/net/ipv4/tcp_fastopen 0", "fast open: Operation not"]
        {
            assert!(before.contains(line), "{before}");
        }

        // On a loaded machine the daemon may give up the networks of the first rounds: their
        // processes take longer to end than it waits.
        for round in 0..30 {
            if round >= 3 && reuse_count > 0 {
                break;
            }

            let output = daemon.output(argv(&["python3", "-c", LEAVE_SCRIPT])).await;
            let (network, errors) = output.split_once('\n').unwrap();
            assert_eq!(errors, "", "the script leaves everything that it can");

            // More runs than idle sandboxes: one of them reuses the slot of the run before.
            for _ in 0..4 {
                let (run_network, after) = inspect().await;
                reuse_count += usize::from(run_network == network);
                let new_lines = |state: &str, earlier: &str| -> Vec<String> {
                    let known: HashSet<&str> = earlier.lines().collect();
                    let new = state.lines().filter(|line| !known.contains(line));
                    new.map(str::to_owned).collect()
                };
                assert_eq!(
                    (new_lines(&after, &before), new_lines(&before, &after)),
                    (vec![], vec![]),
                    "{mode}: lines added, lines removed"
                );
            }
        }

        assert!(reuse_count > 0, "{mode}: no run reused the network of an earlier run");
    }
}

/// Sends new sockets to the process that listens in the workspace.
const PASS_SOCKET_SCRIPT: &str = "
import array, os, socket, time
sockets = [socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX)]
end = socket.socket(socket.AF_UNIX)
while end.connect_ex('meet'):
    time.sleep(0.001)
end.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [passed.fileno() for passed in sockets]))])
print(os.readlink('/proc/self/ns/net'))
";

/// Receives such sockets, closes all but one of them, and waits.
const TAKE_SOCKET_SCRIPT: &str = "
import os, socket, sys, time
end = socket.socket(socket.AF_UNIX)
end.bind('meet')
end.listen()
_, ends, _, _ = socket.recv_fds(end.accept()[0], 1, 3)
for index, received in enumerate(ends):
    if index != int(sys.argv[1]):
        os.close(received)
open('taken', 'w').close()
time.sleep(1000)
";

#[tokio::test]
async fn case_76_network_with_a_surviving_socket_is_not_reused() {
    let test_network = TestNetwork::with_hosts(&[ALLOWED_HOST]);
    for (mode, setup) in network_modes(&test_network) {
        let daemon = setup.start().await;
        for socket in ["0", "1", "2"] {
            let mark = Mark::new();
            let holder =
                daemon.spawn_run(mark.on(argv(&["python3", "-c", TAKE_SOCKET_SCRIPT, socket])));
            let giver_network = daemon.output(argv(&["python3", "-c", PASS_SOCKET_SCRIPT])).await;
            eventually("the holder has the socket", async || daemon.file("taken").exists()).await;

            for _ in 0..6 {
                let network = network_of_next_run(&daemon).await;
                assert_ne!(network, giver_network, "{mode}: socket {socket}");
            }

            holder.abort();
            mark.wait_until_gone().await;
            for name in ["meet", "taken"] {
                std::fs::remove_file(daemon.file(name)).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn clean_runs_reuse_network_namespaces() {
    let test_network = TestNetwork::with_hosts(&[ALLOWED_HOST]);
    for (mode, setup) in network_modes(&test_network) {
        let daemon = setup.start().await;
        start_http_server(&daemon, ALLOWED_HOST.1, 80, None);
        let mut networks = HashSet::new();
        for _ in 0..20 {
            daemon
                .run(shell("curl -sS http://packages.jig.test/; getent hosts packages.jig.test"))
                .await;
            networks.insert(network_of_next_run(&daemon).await);
        }

        assert!(networks.len() < 10, "{mode}: {} networks in 20 runs", networks.len());
    }
}
