//! Processes that a test watches with `Start` or `Attach`.

use jig::api::v1::{
    AttachRequest, ProcessExited, ProcessGap, ProcessStarted, RunRequest, StartRequest,
    WriteStdinRequest, attach_response::Event, process_service_client::ProcessServiceClient,
    start_response,
};
use tonic::{IntoRequest, Status, Streaming, transport::Channel};

use super::{
    Daemon,
    call::{MAX_MESSAGE_BYTES, Refusal, describe_status},
    wait::promptly,
};

/// A stream of a process's events, and what it has delivered so far.
#[derive(Debug)]
pub(crate) struct WatchedProcess {
    source: MessageSource,
    pub(crate) id: String,
    /// Bytes of standard output so far.
    pub(crate) stdout: Vec<u8>,
    /// Bytes of standard error so far.
    pub(crate) stderr: Vec<u8>,
    /// Gaps so far.
    pub(crate) gaps: Vec<ProcessGap>,
    /// Sequence number of the last chunk.
    pub(crate) sequence: u64,
    /// Chunks so far: sequence number, whether of stderr, offset, length.
    pub(crate) chunks: Vec<(u64, bool, u64, usize)>,
    /// Number of keep-alives so far.
    pub(crate) keep_alives: usize,
    /// First offsets of stdout and stderr.
    start_offsets: [u64; 2],
    started: Option<ProcessStarted>,
    exited: Option<ProcessExited>,
}

#[derive(Debug)]
enum MessageSource {
    Start(Streaming<jig::api::v1::StartResponse>),
    Attach(Streaming<jig::api::v1::AttachResponse>),
}

/// A request that starts the command of a `RunRequest`.
pub(crate) fn start_request(request: RunRequest) -> StartRequest {
    StartRequest {
        command: request.command,
        argv: request.argv,
        cwd: request.cwd,
        env: request.env,
        stdin: request.stdin,
        timeout_sec: request.timeout_sec,
        ..StartRequest::default()
    }
}

/// Waits for the end of a process through a second stream.
pub(crate) async fn wait_for_process_exit(daemon: &Daemon, id: &str) -> ProcessExited {
    let mut watch = daemon.attach(id).await;
    watch.wait_for_exit().await
}

impl Daemon {
    /// A client of the process service.
    pub(crate) fn processes(&self) -> ProcessServiceClient<Channel> {
        ProcessServiceClient::new(self.channel())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// Starts a command. Fails if it does not start.
    pub(crate) async fn start_process(
        &self,
        request: impl IntoRequest<StartRequest>,
    ) -> WatchedProcess {
        match self.try_start_process(request).await {
            Ok(watch) => watch,
            Err(status) => panic!("the command was not started: {}", describe_status(&status)),
        }
    }

    /// Starts a command and waits until it was executed.
    pub(crate) async fn try_start_process(
        &self,
        request: impl IntoRequest<StartRequest>,
    ) -> Result<WatchedProcess, Status> {
        let mut processes = self.processes();
        let stream = processes.start(request).await?.into_inner();
        WatchedProcess::new(MessageSource::Start(stream), [0, 0]).wait_for_start().await
    }

    /// Watches a process from its beginning.
    pub(crate) async fn attach(&self, id: &str) -> WatchedProcess {
        let request = AttachRequest { process_id: id.to_owned(), ..AttachRequest::default() };
        match self.try_attach(request).await {
            Ok(watch) => watch,
            Err(status) => {
                panic!("the process cannot be attached to: {}", describe_status(&status))
            }
        }
    }

    /// Watches a process from a position.
    pub(crate) async fn try_attach(
        &self,
        request: AttachRequest,
    ) -> Result<WatchedProcess, Status> {
        WatchedProcess::attach(self.processes(), request).await
    }

    /// Writes to the standard input of a process.
    pub(crate) async fn send_stdin(&self, id: &str, data: &[u8]) -> Result<u64, Refusal> {
        self.write_stdin(WriteStdinRequest {
            process_id: id.to_owned(),
            data: data.to_vec().into(),
            ..WriteStdinRequest::default()
        })
        .await
    }

    /// Closes the standard input of a process.
    pub(crate) async fn close_stdin(&self, id: &str) -> Result<u64, Refusal> {
        self.write_stdin(WriteStdinRequest {
            process_id: id.to_owned(),
            eof: true,
            ..WriteStdinRequest::default()
        })
        .await
    }

    /// Sends a `WriteStdinRequest`. Returns the number of accepted bytes.
    pub(crate) async fn write_stdin(
        &self,
        request: impl IntoRequest<WriteStdinRequest>,
    ) -> Result<u64, Refusal> {
        let mut processes = self.processes();
        let response =
            promptly("the daemon accepts the input", processes.write_stdin(request)).await;
        response
            .map(|response| response.into_inner().accepted_bytes)
            .map_err(|status| Refusal::from_status(&status))
    }

    /// Sends a signal to a process.
    pub(crate) async fn send_signal(&self, id: &str, signal: &str) -> Result<(), Refusal> {
        let request = jig::api::v1::SendSignalRequest {
            process_id: id.to_owned(),
            signal: signal.to_owned(),
        };
        let response = self.processes().send_signal(request).await;
        response.map(drop).map_err(|status| Refusal::from_status(&status))
    }

    /// The processes that the daemon lists.
    pub(crate) async fn list_processes(&self) -> Vec<jig::api::v1::ProcessInfo> {
        let request = jig::api::v1::ListProcessesRequest {};
        let response = self.processes().list_processes(request).await;
        response.unwrap().into_inner().processes
    }
}

impl WatchedProcess {
    /// Watches a process from a position, with a client of the caller's choice.
    pub(crate) async fn attach(
        mut processes: ProcessServiceClient<Channel>,
        request: AttachRequest,
    ) -> Result<Self, Status> {
        let offsets = [request.stdout_offset, request.stderr_offset];
        let stream = processes.attach(request).await?.into_inner();
        Self::new(MessageSource::Attach(stream), offsets).wait_for_start().await
    }

    fn new(source: MessageSource, start_offsets: [u64; 2]) -> Self {
        Self {
            source,
            id: String::new(),
            stdout: Vec::new(),
            stderr: Vec::new(),
            gaps: Vec::new(),
            sequence: 0,
            chunks: Vec::new(),
            keep_alives: 0,
            start_offsets,
            started: None,
            exited: None,
        }
    }

    /// Waits for the first message, which must be `started`.
    async fn wait_for_start(mut self) -> Result<Self, Status> {
        promptly("the process starts", self.next_event()).await?;
        let started = self.started.as_ref().expect("the first message is `started`");
        self.id.clone_from(&started.process_id);
        assert!(!self.id.is_empty());
        Ok(self)
    }

    /// The `started` message.
    pub(crate) fn started(&self) -> &ProcessStarted {
        self.started.as_ref().unwrap()
    }

    /// Receives the next message. Returns false at the end of the stream.
    pub(crate) async fn next_event(&mut self) -> Result<bool, Status> {
        let event = match &mut self.source {
            MessageSource::Start(stream) => match stream.message().await? {
                None => return Ok(false),
                Some(message) => Some(match message.event.expect("a known event") {
                    start_response::Event::Started(started) => Event::Started(started),
                    start_response::Event::Stdout(output) => Event::Stdout(output),
                    start_response::Event::Stderr(output) => Event::Stderr(output),
                    start_response::Event::Gap(gap) => Event::Gap(gap),
                    start_response::Event::KeepAlive(alive) => Event::KeepAlive(alive),
                    start_response::Event::Exited(exited) => Event::Exited(exited),
                }),
            },
            MessageSource::Attach(stream) => match stream.message().await? {
                None => return Ok(false),
                Some(message) => message.event,
            },
        };
        assert!(self.exited.is_none(), "a message follows `exited`");

        match event.expect("a known event") {
            Event::Started(started) => {
                assert!(self.started.replace(started).is_none(), "`started` was sent twice");
            }
            Event::Stdout(output) => self.record_output(false, output),
            Event::Stderr(output) => self.record_output(true, output),
            Event::Gap(gap) => self.record_gap(gap),
            Event::KeepAlive(_) => self.keep_alives += 1,
            Event::Exited(exited) => self.exited = Some(exited),
        }

        Ok(true)
    }

    fn record_output(&mut self, is_stderr: bool, output: jig::api::v1::ProcessOutput) {
        assert!(!output.data.is_empty(), "a chunk is empty");
        assert!(output.data.len() <= 64 * 1024, "a chunk is larger than 64 KiB");

        if self.sequence != 0 {
            assert_eq!(output.sequence, self.sequence + 1, "a chunk is missing");
        }

        self.sequence = output.sequence;
        let length = output.data.len();
        self.chunks.push((output.sequence, is_stderr, output.offset, length));
        let bytes = if is_stderr { &mut self.stderr } else { &mut self.stdout };
        let expected = self.start_offsets[usize::from(is_stderr)] + bytes.len() as u64;
        if self.gaps.is_empty() && self.chunks.first().is_some_and(|first| first.0 == 1) {
            assert_eq!(output.offset, expected, "chunks are not contiguous");
        }

        bytes.extend_from_slice(&output.data);
    }

    fn record_gap(&mut self, gap: ProcessGap) {
        assert!(gap.next_sequence > self.sequence, "{gap:?}");
        self.sequence = gap.next_sequence - 1;
        self.gaps.push(gap);
    }

    /// Reads until the standard output contains `text`.
    pub(crate) async fn read_until(&mut self, text: &str) {
        promptly(&format!("{text:?} is written"), async {
            while !contains(&self.stdout, text) {
                match self.next_event().await {
                    Ok(true) => {}
                    Ok(false) => panic!("the stream ended: {:?}", self.stdout_text()),
                    Err(status) => {
                        panic!(
                            "the stream failed: {} {:?}",
                            describe_status(&status),
                            self.stdout_text()
                        )
                    }
                }
            }
        })
        .await;
    }

    /// Reads to the end, which must be that of the process.
    pub(crate) async fn wait_for_exit(&mut self) -> ProcessExited {
        promptly("the process ends", self.read_to_exit()).await
    }

    /// As [`Self::wait_for_exit`], without a time limit.
    pub(crate) async fn read_to_exit(&mut self) -> ProcessExited {
        loop {
            match self.next_event().await {
                Ok(true) => {}
                Ok(false) => break,
                Err(status) => {
                    panic!(
                        "the stream failed: {} {:.300}",
                        describe_status(&status),
                        self.stdout_text()
                    )
                }
            }
        }

        self.exited.clone().expect("a stream ends with `exited`, or with a status")
    }

    /// Reads to the end, which must be an error status.
    pub(crate) async fn wait_for_failure(&mut self) -> Refusal {
        promptly("the stream ends", async {
            loop {
                match self.next_event().await {
                    Ok(true) => {}
                    Ok(false) => panic!("the stream ended: {:?}", self.exited),
                    Err(status) => return Refusal::from_status(&status),
                }
            }
        })
        .await
    }

    /// The standard output so far, as text.
    pub(crate) fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// A request that attaches after the last chunk.
    pub(crate) fn resume_request(&self) -> AttachRequest {
        AttachRequest {
            process_id: self.id.clone(),
            after_sequence: self.sequence,
            ..AttachRequest::default()
        }
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
