//! Processes whose output is read as a stream, over lost connections.

use std::time::Duration;

use jig::{
    api::v1::{AttachRequest, OnDisconnect, Outcome, StartRequest},
    client::{CallError, ProcessEvent, ProcessEvents},
};

use super::{
    agent::Agent,
    caller::{Caller, numbers},
};

const KIND: &str = "start, attach";
/// Pause of a slow reader after each of its first events.
const SLOW_READER_PAUSE: Duration = Duration::from_millis(200);
const SLOW_READER_EVENTS: u64 = 40;

/// Output of a process so far, and the position of its stream.
#[derive(Debug, Default)]
struct Received {
    position: AttachRequest,
    stdout: Vec<u8>,
    has_gap: bool,
    exit: Option<(Outcome, Option<i32>)>,
}

/// Starts a process, drops the stream at a random event, and attaches to it again.
pub(super) async fn stream(agent: &mut Agent) {
    let id = agent.next_id("stream");
    let lines = 1 + agent.random.below(400);
    let pause = agent.random.command_time(agent.plan.time_scale).as_secs_f64() / lines as f64;
    let request = StartRequest {
        command: Some(format!("for i in $(seq 1 {lines}); do echo $i; sleep {pause:.4}; done")),
        on_disconnect: Some(OnDisconnect::Keep.into()),
        timeout_sec: Some(600),
        ..StartRequest::default()
    };
    let drop_after = agent.random.below(lines * 2);
    let is_slow = agent.random.below(10) == 0;
    let caller = agent.plan.caller.clone();

    let mut received = Received::default();
    match read_to_end(&caller, &request, drop_after, is_slow, &mut received).await {
        Ok((Outcome::Exited, code)) => {
            let is_right = code == Some(0)
                && !received.has_gap
                && received.stdout == numbers(lines).as_bytes();
            caller.tally.check(is_right, || {
                let bytes = received.stdout.len();
                format!("{id}: {bytes} bytes of {lines} lines, gap {}", received.has_gap)
            });
        }
        Ok((outcome, _)) => caller.tally.interrupted(KIND, outcome.as_str_name()),
        Err(reason) => caller.tally.interrupted(KIND, &reason),
    }
}

/// Starts a process, drops its stream after `drop_after` events, and attaches to it until it ends.
/// Returns how it ended, or the reason why that is unknown.
async fn read_to_end(
    caller: &Caller,
    request: &StartRequest,
    drop_after: u64,
    is_slow: bool,
    received: &mut Received,
) -> Result<(Outcome, Option<i32>), String> {
    let started = caller
        .call(KIND, None, |client| {
            let request = request.clone();
            async move { client.start(request).await }
        })
        .await;
    let mut events = started.map_err(|failure| failure.reason().to_owned())?;
    let mut ended = received.read(&mut events, Some(drop_after), is_slow).await;
    drop(events);

    loop {
        if let Some(exit) = received.exit {
            return Ok(exit);
        }
        if let Err(error) = &ended {
            caller.tally.failed(KIND, error.name());
            // With a reason, the daemon has answered. Without an id, there is nothing to attach to.
            if error.reason.is_some() || received.position.process_id.is_empty() {
                return Err(error.name().to_owned());
            }
        }
        let position = received.position.clone();
        let attached = caller
            .call(KIND, None, |client| {
                let position = position.clone();
                async move { client.attach(position).await }
            })
            .await;
        // An answer with an error means that the daemon that ran the process has died.
        let mut events = attached.map_err(|failure| failure.reason().to_owned())?;
        ended = received.read(&mut events, None, is_slow).await;
    }
}

impl Received {
    /// Reads events until the process ends, or until `drop_after` events have arrived.
    async fn read(
        &mut self,
        events: &mut ProcessEvents,
        drop_after: Option<u64>,
        is_slow: bool,
    ) -> Result<(), CallError> {
        let mut count = 0;
        loop {
            let event = events.next().await?;
            match event {
                Some(ProcessEvent::Stdout(output)) => {
                    self.has_gap |= output.offset != self.stdout.len() as u64;
                    self.stdout.extend_from_slice(&output.data);
                }
                Some(ProcessEvent::Gap(_)) => self.has_gap = true,
                Some(ProcessEvent::Exited(exited)) => {
                    self.exit = Some((exited.outcome(), exited.exit_code));
                }
                Some(_) => {}
                None => return Ok(()),
            }
            self.position.clone_from(events.position());
            if self.exit.is_some() {
                return Ok(());
            }
            count += 1;
            if drop_after.is_some_and(|most| count > most) {
                return Ok(());
            }
            if is_slow && count < SLOW_READER_EVENTS {
                tokio::time::sleep(SLOW_READER_PAUSE).await;
            }
        }
    }
}
