//! What a run leaves in its network namespace, which the slot's next run gets: nothing that can be
//! seen or used, but counters.

use std::collections::HashSet;

use crate::support::{
    Daemon, Mark, Setup, TestNetwork, argv, eventually, shell, start_http_server,
};

const ALLOWED_HOST: (&str, &str) = ("packages.jig.test", "203.0.113.10");

/// Prints all that a command can find out about its network, but for counters, numbers of inodes, and
/// sockets of the kernel's.
const INSPECT_SCRIPT: &str = r#"
import os, re, socket, struct, subprocess
print(os.readlink('/proc/self/ns/net'))
# What using the interface at all makes is the same whoever does: three neighbours that are none.
six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
six.sendto(b'', ('::1', 9))
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'', ('127.0.0.1', 9))
group = socket.inet_pton(socket.AF_INET6, 'ff02::fb') + struct.pack('i', 1)
for option in (socket.IPV6_JOIN_GROUP, socket.IPV6_LEAVE_GROUP):
    six.setsockopt(socket.IPPROTO_IPV6, option, group)
six.close()
COUNTERS = {'netstat', 'snmp', 'snmp6', 'dev', 'dev_snmp6', 'softnet_stat', 'sockstat', 'sockstat6', 'protocols', 'stat', 'rt6_stats', 'xfrm_stat', 'fib_triestat'}
for folder, folders, files in os.walk('/proc/self/net'):
    folders[:] = [name for name in folders if name not in COUNTERS]
    for name in sorted(set(files) - COUNTERS):
        try:
            lines = open(os.path.join(folder, name)).read().splitlines()
        except OSError as error:
            lines = [error.strerror]
        if re.fullmatch('(tcp|udp|udplite|raw|icmp)6?', name):
            lines = [' '.join(line.split()[1:4]) for line in lines]
        if name == 'netlink':
            lines = ['pid ' + line.split()[2] for line in lines if line.split()[2] not in ('0', str(os.getpid()))]
        if name == 'route':
            lines = [re.sub(r'\s+', ' ', line) for line in lines]
        if name == 'ipv6_route': # references and uses are counters
            lines = [' '.join(line.split()[:6] + line.split()[8:]) for line in lines]
        print(name, *lines, sep='\n  ')
for folder, folders, files in os.walk('/proc/sys/net'):
    folders.sort()
    for name in sorted(files):
        try:
            print(os.path.join(folder, name), open(os.path.join(folder, name)).read().strip())
        except OSError as error:
            print(os.path.join(folder, name), error.strerror)
for words in ('address', '-4 route show table all', '-6 route show table all', '-4 route show cache', '-6 route show cache', 'rule', '-6 rule',
              'neighbour show nud all', 'neighbour show proxy', 'maddress', 'mroute'):
    shown = subprocess.run(['ip', *words.split()], capture_output=True, text=True).stdout
    print('ip', words, shown)
end = socket.socket()
print('fast open key', len(end.getsockopt(socket.IPPROTO_TCP, 33, 64)))
for name in (b'\0left', b'\0left datagrams'):
    try:
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM if b'datagrams' in name else socket.SOCK_STREAM).connect(name)
        print(name, 'is there')
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

/// Leaves in its network whatever can be left there: sockets of all kinds in all states, with what was
/// sent and nobody has read, held by processes that outlive the command, and by nobody but a message
/// that is under way.
const LEAVE_SCRIPT: &str = r#"
import array, os, signal, socket, struct, subprocess, sys, time
print(os.readlink('/proc/self/ns/net'))
V4, V6 = ('127.0.0.1', socket.AF_INET), ('::1', socket.AF_INET6)
kept = []
# None that the kernel chooses by itself (ip_local_port_range).
port = iter(range(27100, 27130))
def keep(end):
    kept.append(end)
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
    # Closed by who listens, by who has connected, reset, and left with what nobody has read.
    server = listening(address, family, 20)
    for how in range(4):
        one = connected(server)
        other = keep(server.accept()[0])
        one.send(b'left'), other.send(b'left')
        if how == 2:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        if how < 3:
            (one if how else other).close()
            time.sleep(0.001)
            (other if how else one).close()
    connected(server).send(b'not accepted')
    # One that has connected, and of which who listens does not know yet.
    connected(listening(address, family, options=[(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 60)]))
    # More than may wait.
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
    to = keep(socket.socket(family, socket.SOCK_DGRAM))
    to.bind((address, next(port)))
    for _ in range(20):
        keep(socket.socket(family, socket.SOCK_DGRAM)).sendto(b'left', to.getsockname())
# Neighbours, groups.
datagrams = keep(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
datagrams.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton('127.0.0.1'))
six = keep(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
def attempt(what):
    try:
        what()
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
# Settings that are not a command's to make.
for words in ('link set lo down', 'link set lo mtu 1500', 'address add 127.5.5.5/8 dev lo', 'route add blackhole 10.0.0.0/8', 'rule add prio 7 table 7',
              'neighbour add 127.7.7.7 lladdr 02:00:00:00:00:01 dev lo', 'link add left type dummy', '-6 route add blackhole fd00::/8', 'tcp_metrics flush', 'netns add left'):
    assert subprocess.run(['ip', *words.split()], capture_output=True).returncode, words
for folder, _, files in os.walk('/proc/sys/net'):
    for name in files:
        try:
            os.open(os.path.join(folder, name), os.O_WRONLY)
        except OSError:
            continue
        raise Exception(name)
# Names without files, with messages that wait.
for name, kind in ((b'\0left', socket.SOCK_STREAM), (b'\0left datagrams', socket.SOCK_DGRAM)):
    end = keep(socket.socket(socket.AF_UNIX, kind))
    end.bind(name)
    if kind == socket.SOCK_STREAM:
        end.listen(5)
    one = keep(socket.socket(socket.AF_UNIX, kind))
    one.connect(name)
    one.send(b'left')
# News of the kernel's.
keep(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)).bind((0, 0xffff))
# The proxy, where there is one: whole requests and halves, none of which is waited for.
for number in range(100):
    end = keep(socket.socket())
    end.setblocking(False)
    end.connect_ex(('127.0.0.1', 3128))
    attempt(lambda: end.send(b'GET http://packages.jig.test/left HTTP/1.1\r\nHost: packages.jig.test\r\n' + b'\r\n' * (number % 2)))
# Held by messages alone, each under way to the other.
held = [listening(*V4), listening(*V6)]
held.append(connected(held[0]))
def send(over, ends):
    over.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [end.fileno() for end in ends]))])
one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
send(one, [one, other] + held), send(other, [one, other] + held)
for end in held + [one, other]:
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

/// Both ways to have a network namespace of one's own.
fn network_modes(world: &TestNetwork) -> [(&'static str, Setup); 2] {
    [("none", world.setup()), ("proxy", world.proxy_setup(&[ALLOWED_HOST.0], &[ALLOWED_HOST.1]))]
}

async fn network_of_next_run(daemon: &Daemon) -> String {
    daemon.output(shell("readlink /proc/self/ns/net")).await
}

#[tokio::test]
async fn case_63_run_leaves_nothing_in_a_reused_network() {
    let world = TestNetwork::with_hosts(&[ALLOWED_HOST]);
    for (mode, setup) in network_modes(&world) {
        let daemon = setup.start().await;
        start_http_server(&daemon, ALLOWED_HOST.1, 80, None);
        let look = || argv(&["python3", "-c", INSPECT_SCRIPT]);
        let looked = async || {
            let text = daemon.output(look()).await;
            let (network, seen) = text.split_once('\n').unwrap();
            (network.to_owned(), seen.to_owned())
        };
        let (_, before) = looked().await;
        let mut reuse_count = 0;
        for line in ["ip address", "/proc/sys/net/ipv4/tcp_fastopen"] {
            assert!(before.contains(line), "{before}");
        }

        // On a loaded machine it may take longer than is waited for until all is gone that one has left.
        for round in 0..30 {
            if round >= 3 && reuse_count > 0 {
                break;
            }
            let left = daemon.output(argv(&["python3", "-c", LEAVE_SCRIPT])).await;
            let (network, complaints) = left.split_once('\n').unwrap();
            assert_eq!(complaints, "", "what is left must be all that can be");

            // More runs than sandboxes are kept warm: one of them has the place of the one before.
            for _ in 0..4 {
                let (run_network, after) = looked().await;
                reuse_count += usize::from(run_network == network);
                let differ = |one: &str, other: &str| -> Vec<String> {
                    let known: HashSet<&str> = other.lines().collect();
                    let new = one.lines().filter(|line| !known.contains(line));
                    new.map(str::to_owned).collect()
                };
                assert_eq!(
                    (differ(&after, &before), differ(&before, &after)),
                    (vec![], vec![]),
                    "{mode}: more, and less"
                );
            }
        }
        assert!(reuse_count > 0, "{mode}: none had the network of the one before");
    }
}

/// Gives a socket that nobody has used to whoever listens in the workspace.
const PASS_SOCKET_SCRIPT: &str = "
import array, os, socket, time
given = [socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX)]
end = socket.socket(socket.AF_UNIX)
while end.connect_ex('meet'):
    time.sleep(0.001)
end.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [one.fileno() for one in given]))])
print(os.readlink('/proc/self/ns/net'))
";

/// Takes such sockets, keeps one of them, and waits.
const TAKE_SOCKET_SCRIPT: &str = "
import os, socket, sys, time
end = socket.socket(socket.AF_UNIX)
end.bind('meet')
end.listen()
_, ends, _, _ = socket.recv_fds(end.accept()[0], 1, 3)
for index, one in enumerate(ends):
    if index != int(sys.argv[1]):
        os.close(one)
open('taken', 'w').close()
time.sleep(1000)
";

#[tokio::test]
async fn case_76_network_with_a_surviving_socket_is_not_reused() {
    let world = TestNetwork::with_hosts(&[ALLOWED_HOST]);
    for (mode, setup) in network_modes(&world) {
        let daemon = setup.start().await;
        for kept in ["0", "1", "2"] {
            let mark = Mark::new();
            let holder =
                daemon.spawn_run(mark.on(argv(&["python3", "-c", TAKE_SOCKET_SCRIPT, kept])));
            let givers = daemon.output(argv(&["python3", "-c", PASS_SOCKET_SCRIPT])).await;
            eventually("it is taken", async || daemon.file("taken").exists()).await;
            for _ in 0..6 {
                let later = network_of_next_run(&daemon).await;
                assert_ne!(later, givers, "{mode}: socket {kept}");
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
    let world = TestNetwork::with_hosts(&[ALLOWED_HOST]);
    for (mode, setup) in network_modes(&world) {
        let daemon = setup.start().await;
        start_http_server(&daemon, ALLOWED_HOST.1, 80, None);
        let mut seen = HashSet::new();
        for _ in 0..20 {
            daemon
                .run(shell("curl -sS http://packages.jig.test/; getent hosts packages.jig.test"))
                .await;
            seen.insert(network_of_next_run(&daemon).await);
        }
        assert!(seen.len() < 10, "{mode}: {} of 20", seen.len());
    }
}
