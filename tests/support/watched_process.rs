//! Processes that are watched while they run.

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

/// A stream of a process, and what has come of it.
#[derive(Debug)]
pub(crate) struct WatchedProcess {
    source: MessageSource,
    /// Id of the process.
    pub(crate) id: String,
    /// What has come of its standard output.
    pub(crate) stdout: Vec<u8>,
    /// What has come of its standard error.
    pub(crate) stderr: Vec<u8>,
    /// Gaps that were told.
    pub(crate) gaps: Vec<ProcessGap>,
    /// Number of the last chunk that came.
    pub(crate) sequence: u64,
    /// Chunks that came: number, whether of stderr, offset, length.
    pub(crate) chunks: Vec<(u64, bool, u64, usize)>,
    /// Keep-alives that came.
    pub(crate) keep_alives: usize,
    /// Where the streams begin.
    start_offsets: [u64; 2],
    started: Option<ProcessStarted>,
    exited: Option<ProcessExited>,
}

#[derive(Debug)]
enum MessageSource {
    Start(Streaming<jig::api::v1::StartResponse>),
    Attach(Streaming<jig::api::v1::AttachResponse>),
}

/// What to start: as a run, but without its time limit.
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

/// Waits for the end of a process that somebody else reads.
pub(crate) async fn wait_for_process_exit(daemon: &Daemon, id: &str) -> ProcessExited {
    let mut watch = daemon.attach(id).await;
    watch.wait_for_exit().await
}

impl Daemon {
    /// A client of its processes.
    pub(crate) fn processes(&self) -> ProcessServiceClient<Channel> {
        ProcessServiceClient::new(self.channel())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// Starts a command that can be started.
    pub(crate) async fn start_process(
        &self,
        request: impl IntoRequest<StartRequest>,
    ) -> WatchedProcess {
        match self.try_start_process(request).await {
            Ok(watch) => watch,
            Err(status) => panic!("the command was not started: {}", describe_status(&status)),
        }
    }

    /// Starts a command, whatever becomes of it, and waits until it was executed.
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
            Err(status) => panic!("the process cannot be watched: {}", describe_status(&status)),
        }
    }

    /// Watches a process from a position on.
    pub(crate) async fn try_attach(
        &self,
        request: AttachRequest,
    ) -> Result<WatchedProcess, Status> {
        WatchedProcess::attach(self.processes(), request).await
    }

    /// Gives a process something to read.
    pub(crate) async fn send_stdin(&self, id: &str, data: &[u8]) -> Result<u64, Refusal> {
        self.write_stdin(WriteStdinRequest {
            process_id: id.to_owned(),
            data: data.to_vec().into(),
            ..WriteStdinRequest::default()
        })
        .await
    }

    /// Ends the input of a process.
    pub(crate) async fn close_stdin(&self, id: &str) -> Result<u64, Refusal> {
        self.write_stdin(WriteStdinRequest {
            process_id: id.to_owned(),
            eof: true,
            ..WriteStdinRequest::default()
        })
        .await
    }

    /// As [`Self::write`], in full.
    pub(crate) async fn write_stdin(
        &self,
        request: impl IntoRequest<WriteStdinRequest>,
    ) -> Result<u64, Refusal> {
        let mut processes = self.processes();
        let answer = promptly("the write is taken", processes.write_stdin(request)).await;
        answer
            .map(|answer| answer.into_inner().accepted_bytes)
            .map_err(|status| Refusal::from_status(&status))
    }

    /// Sends a signal to a process.
    pub(crate) async fn send_signal(&self, id: &str, signal: &str) -> Result<(), Refusal> {
        let request = jig::api::v1::SendSignalRequest {
            process_id: id.to_owned(),
            signal: signal.to_owned(),
        };
        let answer = self.processes().send_signal(request).await;
        answer.map(drop).map_err(|status| Refusal::from_status(&status))
    }

    /// The processes that it lists.
    pub(crate) async fn list_processes(&self) -> Vec<jig::api::v1::ProcessInfo> {
        let request = jig::api::v1::ListProcessesRequest {};
        let answer = self.processes().list_processes(request).await;
        answer.unwrap().into_inner().processes
    }
}

impl WatchedProcess {
    /// Watches a process from a position on, through a channel of its own.
    pub(crate) async fn attach(
        mut processes: ProcessServiceClient<Channel>,
        request: AttachRequest,
    ) -> Result<Self, Status> {
        let from = [request.stdout_offset, request.stderr_offset];
        let stream = processes.attach(request).await?.into_inner();
        Self::new(MessageSource::Attach(stream), from).wait_for_start().await
    }

    fn new(source: MessageSource, from: [u64; 2]) -> Self {
        Self {
            source,
            id: String::new(),
            stdout: Vec::new(),
            stderr: Vec::new(),
            gaps: Vec::new(),
            sequence: 0,
            chunks: Vec::new(),
            keep_alives: 0,
            start_offsets: from,
            started: None,
            exited: None,
        }
    }

    /// Waits for the first message, which must say that it was executed.
    async fn wait_for_start(mut self) -> Result<Self, Status> {
        promptly("the process begins", self.next_event()).await?;
        let started = self.started.as_ref().expect("the first message is `started`");
        self.id.clone_from(&started.process_id);
        assert!(!self.id.is_empty());
        Ok(self)
    }

    /// What was said when it was executed.
    pub(crate) fn started(&self) -> &ProcessStarted {
        self.started.as_ref().unwrap()
    }

    /// Takes the next message, whatever it is. Answers whether there was one.
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
        assert!(self.exited.is_none(), "nothing comes behind `exited`");
        match event.expect("a known event") {
            Event::Started(started) => {
                assert!(self.started.replace(started).is_none(), "it starts once");
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
        assert!(!output.data.is_empty(), "no chunk is empty");
        assert!(output.data.len() <= 64 * 1024, "no chunk is larger than 64 KiB");
        if self.sequence != 0 {
            assert_eq!(output.sequence, self.sequence + 1, "no chunk is left out");
        }
        self.sequence = output.sequence;
        let length = output.data.len();
        self.chunks.push((output.sequence, is_stderr, output.offset, length));
        let so_far = if is_stderr { &mut self.stderr } else { &mut self.stdout };
        let expected = self.start_offsets[usize::from(is_stderr)] + so_far.len() as u64;
        if self.gaps.is_empty() && self.chunks.first().is_some_and(|first| first.0 == 1) {
            assert_eq!(output.offset, expected, "chunks follow one another");
        }
        so_far.extend_from_slice(&output.data);
    }

    fn record_gap(&mut self, gap: ProcessGap) {
        assert!(gap.next_sequence > self.sequence, "{gap:?}");
        self.sequence = gap.next_sequence - 1;
        self.gaps.push(gap);
    }

    /// Reads until its standard output ends with this.
    pub(crate) async fn read_until(&mut self, text: &str) {
        promptly(&format!("{text:?} is written"), async {
            while !contains(&self.stdout, text) {
                match self.next_event().await {
                    Ok(true) => {}
                    Ok(false) => panic!("it ended: {:?}", self.stdout_text()),
                    Err(status) => {
                        panic!("cut off: {} {:?}", describe_status(&status), self.stdout_text())
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

    /// As [`Self::finish`], however long it takes.
    pub(crate) async fn read_to_exit(&mut self) -> ProcessExited {
        loop {
            match self.next_event().await {
                Ok(true) => {}
                Ok(false) => break,
                Err(status) => {
                    panic!("cut off: {} {:.300}", describe_status(&status), self.stdout_text())
                }
            }
        }
        self.exited.clone().expect("a stream ends with `exited`, or with a status")
    }

    /// Reads to the end, which must be a refusal.
    pub(crate) async fn wait_for_failure(&mut self) -> Refusal {
        promptly("the stream ends", async {
            loop {
                match self.next_event().await {
                    Ok(true) => {}
                    Ok(false) => panic!("it ended: {:?}", self.exited),
                    Err(status) => return Refusal::from_status(&status),
                }
            }
        })
        .await
    }

    /// What has come of its standard output.
    pub(crate) fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Where another stream is to go on.
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
