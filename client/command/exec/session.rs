//! One process, followed to its end: what it writes comes out here, what is typed here goes in, and
//! a connection that is lost is made again.

use std::{
    io,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jig::{
    api::v1::{
        AttachRequest, ProcessExited, ProcessOutput, ResizeTerminalRequest, SendSignalRequest,
        StartRequest, WriteStdinRequest,
    },
    client::{CallError, Client, Code, ProcessEvent, ProcessEvents},
};
use serde_json::{Value, json};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::sleep,
};

use super::{leave::Keys, terminal::size_of_terminal, typed};
use crate::{connection::Signals, exit, failure::Failure, json, local::Local, writer::Writer};

/// How long a lost connection is tried to be made again.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two tries, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// What is to be followed.
#[derive(Debug)]
pub(super) enum Begin {
    /// A command that is started first.
    Start(Box<StartRequest>),
    /// A process from a position on.
    Attach(AttachRequest),
}

/// How it is to be followed.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) begin: Begin,
    /// Whether it is given what is typed.
    pub(super) is_fed: bool,
    /// Whether it is left as soon as it was started.
    pub(super) detaches: bool,
    /// Whether it goes on without a reader.
    pub(super) keeps: bool,
    /// Whether a lost connection is made again.
    pub(super) comes_back: bool,
    /// Whether events are printed as JSON.
    pub(super) as_json: bool,
}

/// How following ended.
#[derive(Debug)]
pub(super) enum Followed {
    /// With the process.
    Exited(Box<ProcessExited>),
    /// It was left as soon as it was started; its id.
    Detached(String),
    /// It was left by who typed.
    Left {
        /// Its id.
        id: String,
        /// Whether it goes on.
        keeps: bool,
    },
}

/// Where what it writes goes.
struct Printer {
    stdout: Option<Writer>,
    stderr: Option<Writer>,
    as_json: bool,
}

impl Session {
    /// Follows it to its end.
    pub(super) async fn follow(
        self,
        client: Client,
        signals: Signals,
        has_terminal: bool,
        is_raw: bool,
    ) -> Result<Followed, Failure> {
        let Self {
            begin,
            is_fed,
            detaches,
            keeps,
            comes_back,
            as_json,
        } = self;
        let (process, known) = watch::channel(None);
        let events = match begin {
            Begin::Start(request) => client.start(*request).await?,
            Begin::Attach(request) => client.attach(request).await?,
        };
        let watcher = Watcher {
            client: client.clone(),
            events,
            process,
            comes_back,
            detaches,
        };
        let feeding = async {
            if is_fed && !detaches {
                feed(&client, known.clone(), is_raw).await
            } else {
                std::future::pending().await
            }
        };
        tokio::select! {
            followed = watcher.watch(Printer::new(as_json)) => followed,
            left = feeding => left.map(|id| Followed::Left { id, keeps }),
            failure = mind(&client, signals, known.clone()) => Err(failure),
            failure = follow_size(&client, known.clone(), has_terminal && !detaches) => Err(failure),
        }
    }
}

/// Who reads what becomes of the process.
struct Watcher {
    client: Client,
    events: ProcessEvents,
    /// Where its id is told.
    process: watch::Sender<Option<String>>,
    comes_back: bool,
    detaches: bool,
}

impl Watcher {
    async fn watch(mut self, mut printer: Printer) -> Result<Followed, Failure> {
        loop {
            let event = match self.events.next().await {
                Ok(Some(event)) => event,
                Ok(None) => return Err(Failure::Daemon("the process has no end".to_owned())),
                Err(error) => {
                    self.come_back(error).await?;
                    continue;
                }
            };
            if let ProcessEvent::Started(started) = &event {
                self.process.send_replace(Some(started.process_id.clone()));
                if self.detaches {
                    return Ok(Followed::Detached(started.process_id.clone()));
                }
            }
            printer = printer.print(&event).await?;
            if let ProcessEvent::Exited(exited) = event {
                printer.finish().await?;
                return Ok(Followed::Exited(Box::new(exited)));
            }
        }
    }

    /// Makes a lost connection again, and goes on where it broke off.
    async fn come_back(&mut self, error: CallError) -> Result<(), Failure> {
        let is_loss = |error: &CallError| {
            // What the daemon says itself has a reason; what the connection says has none.
            error.reason.is_none()
                && matches!(
                    error.code,
                    Code::Unavailable
                        | Code::DataLoss
                        | Code::Unknown
                        | Code::Cancelled
                        | Code::Internal
                )
        };
        let position = self.events.position().clone();
        if !self.comes_back || position.process_id.is_empty() || !is_loss(&error) {
            return Err(error.into());
        }
        let until = Instant::now() + PATIENCE;
        let mut pause = PAUSES.0;
        loop {
            sleep(pause).await;
            match self.client.attach(position.clone()).await {
                Ok(events) => {
                    self.events = events;
                    return Ok(());
                }
                Err(again) if is_loss(&again) && Instant::now() < until => {
                    pause = (pause * 2).min(PAUSES.1);
                }
                Err(last) => return Err(last.into()),
            }
        }
    }
}

impl Printer {
    fn new(as_json: bool) -> Self {
        Self {
            stdout: Some(Writer::start()),
            stderr: Some(Writer::to(io::stderr())),
            as_json,
        }
    }

    async fn print(mut self, event: &ProcessEvent) -> Result<Self, Failure> {
        if self.as_json {
            let Some(value) = to_json(event) else {
                return Ok(self);
            };
            let line = format!("{value}\n").into_bytes();
            self.stdout = write(self.stdout, line).await?;
            return Ok(self);
        }
        match event {
            ProcessEvent::Stdout(part) => {
                self.stdout = write(self.stdout, part.data.to_vec()).await?;
            }
            ProcessEvent::Stderr(part) => {
                self.stderr = write(self.stderr, part.data.to_vec()).await?;
            }
            ProcessEvent::Gap(gap) => {
                let text = format!(
                    "[jig: output was left out that is not kept any more; it goes on at byte {} of stdout and {} of stderr]\r\n",
                    gap.stdout_offset, gap.stderr_offset
                );
                self.stderr = write(self.stderr, text.into_bytes()).await?;
            }
            ProcessEvent::Started(_) | ProcessEvent::KeepAlive | ProcessEvent::Exited(_) | _ => {}
        }
        Ok(self)
    }

    async fn finish(self) -> Result<(), Failure> {
        for writer in [self.stdout, self.stderr].into_iter().flatten() {
            match writer.finish().await {
                // What became of the command does not depend on whether somebody reads on.
                Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
                other => other?,
            }
        }
        Ok(())
    }
}

/// Writes where somebody still reads.
async fn write(writer: Option<Writer>, bytes: Vec<u8>) -> Result<Option<Writer>, Failure> {
    let Some(writer) = writer else {
        return Ok(None);
    };
    match writer.write(bytes).await {
        Ok(writer) => Ok(Some(writer)),
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Gives the process what is typed; answers its id when who types leaves it.
async fn feed(
    client: &Client,
    mut known: watch::Receiver<Option<String>>,
    is_raw: bool,
) -> Result<String, Failure> {
    let process_id = process_id(&mut known).await;
    let mut typed = typed::read();
    let mut keys = Keys::LineStart;
    let mut number = 0_u64;
    let stream = own_name();
    loop {
        let part = typed.recv().await;
        let is_end = part.is_none();
        let part = part.unwrap_or_default();
        let (data, leaves) = if is_raw {
            let passed = keys.pass(&part);
            (passed.bytes, passed.leaves)
        } else {
            (part, false)
        };
        if !data.is_empty() || is_end {
            number += 1;
            let request = WriteStdinRequest {
                process_id: process_id.clone(),
                data: data.into(),
                eof: is_end,
                write_id: format!("{stream}-{number}"),
            };
            if !give(client, request).await? || is_end {
                // It reads no more; it may still write.
                return std::future::pending().await;
            }
        }
        if leaves {
            return Ok(process_id);
        }
    }
}

/// Gives it one part, again while the connection is lost. Answers whether it reads on.
async fn give(client: &Client, request: WriteStdinRequest) -> Result<bool, Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        match client.write_stdin(request.clone()).await {
            Ok(_) => return Ok(true),
            Err(error) if matches!(error.name(), "STDIN_CLOSED" | "PROCESS_ENDED") => {
                return Ok(false);
            }
            // The write id makes sure that it is given once.
            Err(error) if error.code == Code::Unavailable && Instant::now() < until => {
                sleep(PAUSES.0).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends an interrupt on to the process; a second one, or another signal, ends this side.
async fn mind(
    client: &Client,
    mut signals: Signals,
    mut known: watch::Receiver<Option<String>>,
) -> Failure {
    let mut interrupted = false;
    loop {
        let code = signals.next().await;
        let id = known.borrow_and_update().clone();
        match id {
            Some(process_id) if code == exit::CANCELLED && !interrupted => {
                interrupted = true;
                let request = SendSignalRequest {
                    process_id,
                    signal: "SIGINT".to_owned(),
                };
                if let Err(error) = client.send_signal(request).await
                    && error.name() != "PROCESS_ENDED"
                {
                    return error.into();
                }
            }
            _ => return Failure::Interrupted(code),
        }
    }
}

/// Tells the process's terminal each size that this side's gets.
async fn follow_size(
    client: &Client,
    mut known: watch::Receiver<Option<String>>,
    has_terminal: bool,
) -> Failure {
    if !has_terminal {
        return std::future::pending().await;
    }
    let mut changes = match signal(SignalKind::window_change()) {
        Ok(changes) => changes,
        Err(error) => return Local::new("signals cannot be listened for", &error).into(),
    };
    let process_id = process_id(&mut known).await;
    loop {
        let size = size_of_terminal();
        let request = ResizeTerminalRequest {
            process_id: process_id.clone(),
            cols: size.cols,
            rows: size.rows,
        };
        // Whether it is told is told by the stream: it ends with the process.
        client.resize_terminal(request).await.ok();
        changes.recv().await;
    }
}

/// Waits until it is known which process it is.
async fn process_id(known: &mut watch::Receiver<Option<String>>) -> String {
    let id = known.wait_for(Option::is_some).await;
    match id.ok().and_then(|id| id.clone()) {
        Some(id) => id,
        // Nobody will tell any more.
        None => std::future::pending().await,
    }
}

/// A name that no other run of jig gives its writes.
fn own_name() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = since.map_or(0, |time| time.as_nanos());
    format!("{nanos:x}-{}", std::process::id())
}

fn to_json(event: &ProcessEvent) -> Option<Value> {
    let part = |part: &ProcessOutput| {
        json!({
            "sequence": part.sequence,
            "offset": part.offset,
            "data": STANDARD.encode(&part.data),
        })
    };
    Some(match event {
        ProcessEvent::Started(started) => json!({ "started": {
            "process_id": started.process_id,
            "start_time": started.start_time.map(|time| time.to_string()),
            "stdout_path": started.stdout_path,
            "stderr_path": started.stderr_path,
            "isolation": started.isolation,
        }}),
        ProcessEvent::Stdout(output) => json!({ "stdout": part(output) }),
        ProcessEvent::Stderr(output) => json!({ "stderr": part(output) }),
        ProcessEvent::Gap(gap) => json!({ "gap": {
            "next_sequence": gap.next_sequence,
            "stdout_offset": gap.stdout_offset,
            "stderr_offset": gap.stderr_offset,
        }}),
        ProcessEvent::Exited(exited) => json!({ "exited": json::exited(exited) }),
        ProcessEvent::KeepAlive | _ => return None,
    })
}
