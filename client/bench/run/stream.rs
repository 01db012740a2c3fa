//! Throughput of a command's output to one client, against a pipe.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    path::Path,
    time::{Duration, Instant},
};

use jig::{
    api::v1::StartRequest,
    client::{Client, ProcessEvent},
};
use tokio::runtime::Runtime;

use super::{super::daemon::Daemon, bare, tree::kibibytes};
use crate::cli_error::CliError;

/// Name and size of the file that is streamed.
const STREAM_FILE: &str = "stream";
const STREAM_FILE_MIB: usize = 64;
/// Number of times that one command writes the file. The stream is long compared with the start
/// that is stored as an artifact.
const FILE_REPEAT_COUNT: usize = 16;
/// Bytes between checks of the daemon's memory.
const BYTES_PER_MEMORY_CHECK: usize = 16 << 20;

/// Results of the measurement.
#[derive(Debug)]
pub(super) struct StreamThroughput {
    /// Bytes streamed each way.
    pub(super) bytes: usize,
    /// Throughput of a pipe.
    pub(super) pipe_bytes_per_second: f64,
    /// Throughput of the daemon.
    pub(super) jig_bytes_per_second: f64,
    /// Peak memory of the daemon while it streamed.
    pub(super) peak_memory_bytes: u64,
}

pub(super) fn measure(
    runtime: &Runtime,
    client: &Client,
    daemon: &Daemon,
    mib: usize,
) -> Result<StreamThroughput, CliError> {
    let file = daemon.workspace().join(STREAM_FILE);
    let file_mib = STREAM_FILE_MIB.min(mib);
    create_file(&file, file_mib << 20).map_err(CliError::system)?;
    let times = FILE_REPEAT_COUNT.min(mib / file_mib);
    let size = (file_mib * times) << 20;
    let rounds = (mib << 20).div_ceil(size);

    let (mut pipe_time, mut jig_time) = (Duration::ZERO, Duration::ZERO);
    let mut peak_memory_bytes = 0;
    // Not measured: brings the file into memory.
    through_pipe(&file, times, size)?;
    for _ in 0..rounds {
        pipe_time += through_pipe(&file, times, size)?;
        let start = Instant::now();
        let peak = runtime.block_on(through_daemon(client, daemon.process(), times, size))?;
        jig_time += start.elapsed();
        peak_memory_bytes = peak.max(peak_memory_bytes);
    }

    fs::remove_file(file).map_err(CliError::system)?;
    let bytes = size * rounds;
    let rate = |time: Duration| bytes as f64 / time.as_secs_f64();
    Ok(StreamThroughput {
        bytes,
        pipe_bytes_per_second: rate(pipe_time),
        jig_bytes_per_second: rate(jig_time),
        peak_memory_bytes,
    })
}

fn create_file(path: &Path, size: usize) -> io::Result<()> {
    let line = "some output of a command that prints a lot\n".repeat(1000);
    let mut file = io::BufWriter::new(fs::File::create(path)?);
    let mut remaining = size;
    while remaining > 0 {
        let part = line.get(..remaining.min(line.len())).unwrap_or_default();
        file.write_all(part.as_bytes())?;
        remaining -= part.len();
    }
    file.flush()
}

fn through_pipe(file: &Path, times: usize, size: usize) -> Result<Duration, CliError> {
    let start = Instant::now();
    let mut child = bare::spawn_cat(file, times).map_err(CliError::system)?;
    let mut buffer = vec![0; 64 << 10];
    let mut received = 0;

    if let Some(output) = &mut child.stdout {
        loop {
            match output.read(&mut buffer).map_err(CliError::system)? {
                0 => break,
                read => received += read,
            }
        }
    }

    let status = child.wait().map_err(CliError::system)?;
    let time = start.elapsed();
    if !status.success() || received != size {
        return Err(CliError::system(format_args!("cat wrote {received} bytes: {status}")));
    }
    Ok(time)
}

/// Streams the output through the daemon. Returns the daemon's peak memory in bytes.
async fn through_daemon(
    client: &Client,
    daemon: i32,
    times: usize,
    size: usize,
) -> Result<u64, CliError> {
    let mut argv = vec!["cat".to_owned()];
    argv.resize(1 + times, STREAM_FILE.to_owned());
    let request = StartRequest { argv, ..StartRequest::default() };
    let mut events = client.start(request).await?;

    let (mut received, mut last_check, mut peak) = (0, 0, resident_bytes(daemon)?);
    while let Some(event) = events.next().await? {
        match event {
            ProcessEvent::Stdout(output) => received += output.data.len(),
            ProcessEvent::Stderr(output) => {
                return Err(CliError::system(String::from_utf8_lossy(&output.data)));
            }
            ProcessEvent::Gap(_) => {
                return Err(CliError::system("a part of the output is missing"));
            }
            ProcessEvent::Started(_) | ProcessEvent::KeepAlive | ProcessEvent::Exited(_) | _ => {}
        }
        if received >= last_check + BYTES_PER_MEMORY_CHECK {
            last_check = received;
            peak = peak.max(resident_bytes(daemon)?);
        }
    }

    if received != size {
        return Err(CliError::system(format_args!("received {received} of {size} bytes")));
    }
    Ok(peak)
}

fn resident_bytes(process: i32) -> Result<u64, CliError> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).map_err(CliError::system)?;
    Ok(kibibytes(&status, "VmRSS:") * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_through_a_pipe_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        create_file(&file, 100_001).unwrap();
        assert!(through_pipe(&file, 2, 200_002).is_ok());
        assert!(through_pipe(&file, 2, 100_001).is_err());
    }
}
