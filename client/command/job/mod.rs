//! `jig job`: calls of tools that nobody waits for.

mod print;
mod watch;

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use jig::{
    api::v1::{
        CancelJobRequest, GetJobRequest, Job, JobState, ListJobsRequest, SubmitJobRequest,
        WaitJobRequest, WatchJobRequest,
    },
    client::{CallError, Client},
};
use serde_json::json;

use self::{
    print::{job_json, print_job, print_list},
    watch::{exit_code, watch},
};
use super::params::ToolParameters;
use crate::{cli_error::CliError, connection, exit, global::GlobalArgs, output};

/// Most jobs of one page.
const MAX_JOBS_PER_PAGE: u32 = 1000;

/// Submit, list, wait for, watch and cancel jobs: calls of tools that the daemon makes when their turn
/// comes, and whose results it keeps.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    #[command(subcommand)]
    action: JobCommand,
}

/// What to do with jobs.
#[derive(Debug, Subcommand)]
enum JobCommand {
    Submit(SubmitArgs),
    /// Tell how far a job is and, once it has ended, what came of it.
    Get {
        /// Its id.
        #[arg(value_name = "JOB")]
        job: String,
    },
    #[command(visible_alias = "list")]
    Ls(JobLsArgs),
    /// Wait until a job has ended, and tell what came of it; exits as `jig job watch` does.
    Wait {
        /// Its id.
        #[arg(value_name = "JOB")]
        job: String,
        /// Seconds to wait at most; then tell how far it is.
        #[arg(long, value_name = "SEC")]
        at_most: Option<u32>,
    },
    /// End a job, wait until nothing is left of it, and tell what came of it; 0 when it has ended.
    Cancel {
        /// Its id.
        #[arg(value_name = "JOB")]
        job: String,
    },
    Watch(WatchArgs),
}

/// Put a call of a tool into a queue, and print the job's id.
#[derive(Debug, Args)]
struct SubmitArgs {
    /// Name of the tool: `run`.
    tool: String,
    #[command(flatten)]
    parameters: ToolParameters,
    /// Vocabulary that the tool is of: `agentbench`, `anthropic`, `claude`, `cli_agent`, `dracode`, `openai`,
    /// `rauskuclaw`. Without it, that of the contract.
    #[arg(long, value_name = "NAME")]
    dialect: Option<String>,
    /// Queue to wait in.
    #[arg(long, default_value = "default")]
    queue: String,
    /// Who comes first in the queue, from -100 to 100: higher before lower.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Wait until it has ended, and tell what came of it; exits as `jig job watch` does.
    #[arg(long)]
    wait: bool,
}

/// List jobs, those that were submitted last first.
#[derive(Debug, Args)]
struct JobLsArgs {
    /// Only those in this state. Can be given several times.
    #[arg(long, value_enum)]
    state: Vec<JobStateArg>,
    /// Only those of this queue.
    #[arg(long)]
    queue: Option<String>,
    /// How many at most.
    #[arg(short, long, default_value_t = 50)]
    number: u32,
}

/// Print what the command of a job writes, from the offsets on, until it has ended.
///
/// Exits with the command's exit code; 128+n when signal n ended it, 124 when its time was up, 130
/// when it was cancelled, 1 when it was not run or jig failed. With --json, each change of the job
/// and each part of its output is a line, the data in base64.
#[derive(Debug, Args)]
struct WatchArgs {
    /// Its id.
    #[arg(value_name = "JOB")]
    job: String,
    /// First byte of standard output to print.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    stdout_offset: u64,
    /// First byte of standard error to print.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    stderr_offset: u64,
}

/// State of a job.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum JobStateArg {
    Queued,
    Running,
    Succeeded,
    Failed,
    Cancelled,
    Lost,
}

pub(crate) fn job(global: &GlobalArgs, args: JobArgs) -> ExitCode {
    let done = global.require_address().and_then(|address| match args.action {
        JobCommand::Submit(args) => submit(address, global, args),
        JobCommand::Get { job } => get(address, global, job),
        JobCommand::Ls(args) => list(address, global, args),
        JobCommand::Wait { job, at_most } => {
            let wait_ms = at_most.map(|seconds| seconds.saturating_mul(1000));
            let job = call_for_job(address, global, async |client| {
                let request = WaitJobRequest { job_id: job, wait_ms };
                Ok(client.wait_job(request).await?.job)
            })?;
            print_and_code(&job, global)
        }
        JobCommand::Cancel { job } => {
            let job = call_for_job(address, global, async |client| {
                Ok(client.cancel_job(CancelJobRequest { job_id: job }).await?.job)
            })?;
            print_job(&job, global.json)?;
            Ok(exit::SUCCESS)
        }
        JobCommand::Watch(args) => {
            let request = WatchJobRequest {
                job_id: args.job,
                stdout_offset: args.stdout_offset,
                stderr_offset: args.stderr_offset,
                keep_alive_sec: None,
            };
            watch(address, global, request)
        }
    });
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => super::report_and_exit(Err(failure), global.json),
    }
}

/// Makes a call that answers a job.
fn call_for_job<F>(address: &str, global: &GlobalArgs, call: F) -> Result<Job, CliError>
where
    F: AsyncFnOnce(Client) -> Result<Option<Job>, CallError>,
{
    let job =
        connection::call_address(address, global, async |client: Client| Ok(call(client).await?))?;
    job.ok_or_else(|| CliError::Daemon("the answer has no job".to_owned()))
}

fn submit(address: &str, global: &GlobalArgs, args: SubmitArgs) -> Result<u8, CliError> {
    let request = SubmitJobRequest {
        tool: args.tool,
        params_json: args.parameters.into_json()?,
        dialect: args.dialect.unwrap_or_default(),
        queue: Some(args.queue),
        priority: Some(args.priority),
        ..SubmitJobRequest::default()
    };
    let wait = args.wait;
    let job = call_for_job(address, global, async |client| {
        let submitted = client.submit_job(request).await?.job;
        match submitted {
            Some(job) if wait => {
                let request = WaitJobRequest { job_id: job.job_id, wait_ms: None };
                Ok(client.wait_job(request).await?.job)
            }
            submitted => Ok(submitted),
        }
    })?;
    if wait {
        return print_and_code(&job, global);
    }
    match global.json {
        true => output::write_json(&job_json(&job))?,
        false => output::write_stdout(format!("{}\n", job.job_id).as_bytes())?,
    }
    Ok(exit::SUCCESS)
}

fn get(address: &str, global: &GlobalArgs, job_id: String) -> Result<u8, CliError> {
    let job = call_for_job(address, global, async |client| {
        Ok(client.get_job(GetJobRequest { job_id }).await?.job)
    })?;
    print_job(&job, global.json)?;
    Ok(exit::SUCCESS)
}

fn list(address: &str, global: &GlobalArgs, args: JobLsArgs) -> Result<u8, CliError> {
    let states: Vec<i32> = args.state.iter().map(|state| state.to_proto().into()).collect();
    let jobs = connection::call_address(address, global, async |client: Client| {
        let (mut jobs, mut page_token) = (Vec::new(), String::new());
        let mut left = args.number;
        while left > 0 {
            let request = ListJobsRequest {
                states: states.clone(),
                queue: args.queue.clone().unwrap_or_default(),
                page_size: Some(left.min(MAX_JOBS_PER_PAGE)),
                page_token,
            };
            let page = client.list_jobs(request).await?;
            left -= u32::try_from(page.jobs.len()).unwrap_or(left).min(left);
            jobs.extend(page.jobs);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        Ok(jobs)
    })?;
    if global.json {
        let jobs: Vec<_> = jobs.iter().map(job_json).collect();
        output::write_json(&json!({ "jobs": jobs }))?;
    } else if jobs.is_empty() {
        let is_selected = !args.state.is_empty() || args.queue.is_some();
        output::note(match is_selected {
            true => "there are no such jobs",
            false => "there are no jobs",
        });
    } else {
        print_list(&jobs)?;
    }
    Ok(exit::SUCCESS)
}

/// Prints a job that was waited for.
fn print_and_code(job: &Job, global: &GlobalArgs) -> Result<u8, CliError> {
    print_job(job, global.json)?;
    Ok(exit_code(job))
}

impl JobStateArg {
    fn to_proto(self) -> JobState {
        match self {
            Self::Queued => JobState::Queued,
            Self::Running => JobState::Running,
            Self::Succeeded => JobState::Succeeded,
            Self::Failed => JobState::Failed,
            Self::Cancelled => JobState::Cancelled,
            Self::Lost => JobState::Lost,
        }
    }
}
