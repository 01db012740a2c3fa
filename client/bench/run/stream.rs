//! The output of a command, as a stream to one client, beside the same into a pipe.

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

/// The file that is written out, and its size.
const STREAM_FILE: &str = "stream";
const STREAM_FILE_MIB: usize = 64;
/// How many times one command writes it out: a stream is long, and what is kept of its beginning as
/// an artifact is little of it.
const FILE_REPEATS: usize = 16;
/// Bytes after which is looked at the daemon's memory.
const BYTES_PER_MEMORY_CHECK: usize = 16 << 20;

/// What was measured.
#[derive(Debug)]
pub(super) struct StreamThroughput {
    /// Bytes of each kind.
    pub(super) bytes: usize,
    /// Bytes per second into a pipe.
    pub(super) pipe_bytes_per_second: f64,
    /// Bytes per second through the daemon.
    pub(super) jig_bytes_per_second: f64,
    /// Most memory that the daemon had meanwhile, in bytes.
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
    let times = FILE_REPEATS.min(mib / file_mib);
    let size = (file_mib * times) << 20;
    let rounds = (mib << 20).div_ceil(size);
    let (mut by_pipe, mut by_jig) = (Duration::ZERO, Duration::ZERO);
    let mut most_bytes = 0;
    // Once before: the file is in memory then.
    through_pipe(&file, times, size)?;
    for _ in 0..rounds {
        by_pipe += through_pipe(&file, times, size)?;
        let start = Instant::now();
        let most = runtime.block_on(through_daemon(client, daemon.process(), times, size))?;
        by_jig += start.elapsed();
        most_bytes = most.max(most_bytes);
    }
    fs::remove_file(file).map_err(CliError::system)?;
    let bytes = size * rounds;
    let rate = |time: Duration| bytes as f64 / time.as_secs_f64();
    Ok(StreamThroughput {
        bytes,
        pipe_bytes_per_second: rate(by_pipe),
        jig_bytes_per_second: rate(by_jig),
        peak_memory_bytes: most_bytes,
    })
}

fn create_file(path: &Path, size: usize) -> io::Result<()> {
    let line = "some output of a command that has much to say\n".repeat(1000);
    let mut file = io::BufWriter::new(fs::File::create(path)?);
    let mut left = size;
    while left > 0 {
        let part = line.get(..left.min(line.len())).unwrap_or_default();
        file.write_all(part.as_bytes())?;
        left -= part.len();
    }
    file.flush()
}

fn through_pipe(file: &Path, times: usize, size: usize) -> Result<Duration, CliError> {
    let start = Instant::now();
    let mut child = bare::spawn_cat(file, times).map_err(CliError::system)?;
    let mut buffer = vec![0; 64 << 10];
    let mut came = 0;
    if let Some(output) = &mut child.stdout {
        loop {
            match output.read(&mut buffer).map_err(CliError::system)? {
                0 => break,
                read => came += read,
            }
        }
    }
    let status = child.wait().map_err(CliError::system)?;
    let time = start.elapsed();
    match status.success() && came == size {
        true => Ok(time),
        false => Err(CliError::system(format_args!("cat wrote {came} bytes: {status}"))),
    }
}

/// Answers the most memory that the daemon had.
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
    let (mut came, mut looked, mut most) = (0, 0, resident_bytes(daemon)?);
    while let Some(event) = events.next().await? {
        match event {
            ProcessEvent::Stdout(output) => came += output.data.len(),
            ProcessEvent::Stderr(output) => {
                return Err(CliError::system(String::from_utf8_lossy(&output.data)));
            }
            ProcessEvent::Gap(_) => {
                return Err(CliError::system("a part of the output was left out"));
            }
            ProcessEvent::Started(_) | ProcessEvent::KeepAlive | ProcessEvent::Exited(_) | _ => {}
        }
        if came >= looked + BYTES_PER_MEMORY_CHECK {
            looked = came;
            most = most.max(resident_bytes(daemon)?);
        }
    }
    match came == size {
        true => Ok(most),
        false => Err(CliError::system(format_args!("{came} of {size} bytes came"))),
    }
}

fn resident_bytes(process: i32) -> Result<u64, CliError> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).map_err(CliError::system)?;
    Ok(kibibytes(&status, "VmRSS:") * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_through_a_pipe_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        create_file(&file, 100_001).unwrap();
        assert!(through_pipe(&file, 2, 200_002).is_ok());
        assert!(through_pipe(&file, 2, 100_001).is_err());
    }
}
