//! A TCP proxy between a client and the NATS server, which injects faults of a network.

use std::{
    io::{self, BufRead as _, BufReader, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Bytes that a slow link passes at once.
const SLOW_CHUNK_BYTES: usize = 512;
/// Time between two chunks on a slow link.
const SLOW_CHUNK_INTERVAL: Duration = Duration::from_millis(5);

/// A proxy in front of a NATS server. Its address stays the same when the server restarts.
#[derive(Debug, Clone)]
pub(super) struct NatsProxy {
    port: u16,
    link: Arc<Link>,
}

/// The condition of the network behind a proxy.
#[derive(Debug)]
struct Link {
    state: Mutex<LinkState>,
    changed: Condvar,
    /// In each direction.
    delay: Duration,
}

#[derive(Debug)]
struct LinkState {
    server_port: u16,
    /// Bytes wait in both directions, as in a network that lost its route.
    is_partitioned: bool,
    /// Acknowledgements and progress of JetStream messages vanish.
    drops_acks: bool,
    dropped_acks: usize,
    /// Bytes to the client arrive slowly.
    is_slow: bool,
    streams: Vec<TcpStream>,
    /// The connections of daemons for the messages of queues.
    queue_streams: Vec<TcpStream>,
}

/// A stream whose bytes arrive later. It takes more of them meanwhile.
struct DelayedStream {
    delay: Duration,
    sender: mpsc::Sender<(Instant, Vec<u8>)>,
}

impl NatsProxy {
    pub(super) fn start(server_port: u16) -> Self {
        Self::start_with_delay(server_port, Duration::ZERO)
    }

    /// A proxy on which bytes take a while, in each direction.
    pub(super) fn start_with_delay(server_port: u16, delay: Duration) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = LinkState {
            server_port,
            is_partitioned: false,
            drops_acks: false,
            dropped_acks: 0,
            is_slow: false,
            streams: Vec::new(),
            queue_streams: Vec::new(),
        };
        let link = Arc::new(Link { state: Mutex::new(state), changed: Condvar::new(), delay });

        // The thread runs until the test process ends: there are few such threads.
        let accepting = Arc::clone(&link);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let link = Arc::clone(&accepting);
                thread::spawn(move || link.connect(client));
            }
        });

        Self { port, link }
    }

    /// The URL of the server, as its clients see it.
    pub(super) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Sets the port of the restarted server.
    pub(super) fn set_server_port(&self, port: u16) {
        self.link.lock().server_port = port;
    }

    /// Holds back all bytes. New connections receive nothing.
    pub(super) fn partition(&self) {
        self.link.lock().is_partitioned = true;
    }

    /// Delivers the bytes that the partition has held back.
    pub(super) fn heal(&self) {
        self.link.lock().is_partitioned = false;
        self.link.changed.notify_all();
    }

    /// Resets all connections.
    pub(super) fn cut(&self) {
        for stream in self.link.lock().streams.drain(..) {
            // A stream that is already closed counts as cut.
            let _closed = stream.shutdown(Shutdown::Both);
        }
    }

    /// Resets the connections of daemons for the messages of queues.
    pub(super) fn cut_queue(&self) {
        for stream in self.link.lock().queue_streams.drain(..) {
            let _closed = stream.shutdown(Shutdown::Both);
        }
    }

    /// Drops acknowledgements and progress from now on, or no longer.
    pub(super) fn drop_acks(&self, drops: bool) {
        self.link.lock().drops_acks = drops;
    }

    /// Number of dropped acknowledgements and reports of progress.
    pub(super) fn dropped_acks(&self) -> usize {
        self.link.lock().dropped_acks
    }

    /// Makes the link to the client slow: about 100 KB/s.
    pub(super) fn slow_down(&self) {
        self.link.lock().is_slow = true;
    }
}

impl Link {
    fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap()
    }

    /// Waits until bytes may pass.
    fn wait_until_open(&self) -> MutexGuard<'_, LinkState> {
        self.changed.wait_while(self.lock(), |state| state.is_partitioned).unwrap()
    }

    fn connect(self: Arc<Self>, client: TcpStream) {
        let port = self.wait_until_open().server_port;
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else {
            return;
        };
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
        }
        self.lock().streams.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);

        let link = Arc::clone(&self);
        let ends = (client.try_clone().unwrap(), server.try_clone().unwrap());
        thread::spawn(move || {
            let _closed = link.forward_to_server(&ends.0, &ends.1);
            close(&ends.0, &ends.1);
        });
        let _closed = self.forward_to_client(&server, &client);
        close(&server, &client);
    }

    fn writer(&self, stream: &TcpStream) -> io::Result<Box<dyn Write>> {
        let stream = stream.try_clone()?;
        if self.delay.is_zero() {
            return Ok(Box::new(stream));
        }
        Ok(Box::new(DelayedStream::new(stream, self.delay)))
    }

    /// Forwards the client's messages one by one, except dropped ones.
    fn forward_to_server(&self, stream: &TcpStream, server: &TcpStream) -> io::Result<()> {
        let mut client = BufReader::new(stream);
        let mut server = self.writer(server)?;
        loop {
            let mut message = Vec::new();
            if client.read_until(b'\n', &mut message)? == 0 {
                return Ok(());
            }
            let is_ack = read_payload(&mut client, &mut message)?;
            if message.starts_with(b"CONNECT ") && contains(&message, b" inbound build\"") {
                self.lock().queue_streams.push(stream.try_clone()?);
            }

            let mut state = self.wait_until_open();
            if is_ack && state.drops_acks {
                state.dropped_acks += 1;
                continue;
            }
            drop(state);
            server.write_all(&message)?;
        }
    }

    fn forward_to_client(&self, mut server: &TcpStream, client: &TcpStream) -> io::Result<()> {
        let mut client = self.writer(client)?;
        let mut buffer = [0; 64 << 10];
        loop {
            let is_slow = self.lock().is_slow;
            let limit = if is_slow { SLOW_CHUNK_BYTES } else { buffer.len() };
            let size = server.read(&mut buffer[..limit])?;
            if size == 0 {
                return Ok(());
            }
            if is_slow {
                // Paces the link.
                thread::sleep(SLOW_CHUNK_INTERVAL);
            }
            drop(self.wait_until_open());
            client.write_all(&buffer[..size])?;
        }
    }
}

impl DelayedStream {
    fn new(mut stream: TcpStream, delay: Duration) -> Self {
        let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
        thread::spawn(move || {
            for (time, bytes) in receiver {
                // Paces the link.
                thread::sleep(time.saturating_duration_since(Instant::now()));
                if stream.write_all(&bytes).is_err() {
                    return;
                }
            }
        });
        Self { delay, sender }
    }
}

impl Write for DelayedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let delayed = (Instant::now() + self.delay, bytes.to_vec());
        self.sender.send(delayed).map_err(|_closed| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Appends the payload that follows a line of a client, and its line end. Returns whether the
/// message acknowledges a JetStream message or reports progress.
fn read_payload(client: &mut impl Read, message: &mut Vec<u8>) -> io::Result<bool> {
    let line = String::from_utf8_lossy(message).into_owned();
    let mut words = line.split_ascii_whitespace();
    let verb = words.next().unwrap_or_default().to_ascii_uppercase();
    if verb != "PUB" && verb != "HPUB" {
        return Ok(false);
    }

    let is_ack = words.next().is_some_and(|subject| subject.starts_with("$JS.ACK."));
    let bytes: usize = words.next_back().unwrap().parse().unwrap();
    let start = message.len();
    message.resize(start + bytes + 2, 0);
    client.read_exact(&mut message[start..])?;

    Ok(is_ack)
}

fn close(one: &TcpStream, other: &TcpStream) {
    for stream in [one, other] {
        // Both directions end together, in any order.
        let _closed = stream.shutdown(Shutdown::Both);
    }
}
