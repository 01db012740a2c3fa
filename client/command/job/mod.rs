//! `jig job`: submits and manages jobs, which are tool calls in the background.

mod print;
mod watch;

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use jig::{
    api::v1::{
        CancelJobRequest, GetJobRequest, Job, JobState, ListJobsRequest, SubmitJobRequest,
        SubmitJobResponse, WaitJobRequest, WatchJobRequest,
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

/// Maximum number of jobs per page.
const MAX_JOBS_PER_PAGE: u32 = 1000;

/// Submit, list, watch and cancel jobs: tool calls that the daemon queues and whose results it
/// stores.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    #[command(subcommand)]
    action: JobCommand,
}

impl JobArgs {
    /// Returns whether the command submits a job.
    pub(crate) fn submits_job(&self) -> bool {
        matches!(self.action, JobCommand::Submit(_))
    }
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    Submit(SubmitArgs),
    /// Show the state of a job and, once it has ended, its result.
    Get {
        /// Id of the job.
        #[arg(value_name = "JOB")]
        job: String,
    },
    #[command(visible_alias = "list")]
    Ls(JobLsArgs),
    /// Wait until a job has ended, and show its result. Exit codes as of `jig job watch`.
    Wait {
        /// Id of the job.
        #[arg(value_name = "JOB")]
        job: String,
        /// Maximum time to wait, in seconds. Then the state of the job is shown. Default:
        /// unlimited.
        #[arg(long, alias = "at-most", value_name = "SEC")]
        timeout: Option<u32>,
    },
    /// Cancel a job, wait until it has ended, and show its result. Exit code 0 once it has ended.
    Cancel {
        /// Id of the job.
        #[arg(value_name = "JOB")]
        job: String,
    },
    Watch(WatchArgs),
}

/// Queue a tool call as a job, and print its id.
///
/// Example: `jig job submit run command='make test' --wait`.
#[derive(Debug, Args)]
struct SubmitArgs {
    /// Name of the tool, for example `run`.
    tool: String,
    #[command(flatten)]
    parameters: ToolParameters,
    /// Dialect of the tool name: `agentbench`, `anthropic`, `claude`, `cli_agent`, `dracode`,
    /// `openai` or `rauskuclaw`. Default: jig's own names.
    #[arg(long, value_name = "NAME")]
    dialect: Option<String>,
    /// Name of the queue.
    #[arg(long, default_value = "default")]
    queue: String,
    /// Priority in the queue, from -100 to 100. Higher values run first.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Publish the job to the queue of the fleet: any of its daemons runs it.
    #[arg(long)]
    fleet: bool,
    /// If the daemon that runs the job dies, run it again on another one. By default, the job is
    /// then lost.
    #[arg(long, requires = "fleet")]
    retry_if_lost: bool,
    /// Store the artifacts of the job, such as its complete output, when it ends. Then `jig artifact
    /// --job` reads them at any daemon of the fleet.
    #[arg(long, requires = "fleet")]
    store_artifacts: bool,
    /// Wait until the job has ended, and show its result. Exit codes as of `jig job watch`.
    #[arg(long)]
    wait: bool,
}

/// List jobs, newest first.
#[derive(Debug, Args)]
struct JobLsArgs {
    /// List only jobs in this state. Repeatable.
    #[arg(long, value_enum)]
    state: Vec<JobStateArg>,
    /// List only jobs of this queue.
    #[arg(long)]
    queue: Option<String>,
    /// Maximum number of jobs to list.
    #[arg(short, long, default_value_t = 50)]
    number: u32,
}

/// Print the output of a job's command until the job has ended.
///
/// Exit codes: that of the command; 128+n after signal n, 124 after a timeout, 130 if cancelled, 1
/// if the command did not run or jig failed. With --json, prints each change of the job and each
/// part of its output as a line, with data in base64.
#[derive(Debug, Args)]
struct WatchArgs {
    /// Id of the job.
    #[arg(value_name = "JOB")]
    job: String,
    /// Offset of the first byte of standard output to print.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    stdout_offset: u64,
    /// Offset of the first byte of standard error to print.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    stderr_offset: u64,
}

/// States of a job.
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
    let result = global.require_address().and_then(|address| match args.action {
        JobCommand::Submit(args) => submit(address, global, args),
        JobCommand::Get { job } => get(address, global, job),
        JobCommand::Ls(args) => list(address, global, args),
        JobCommand::Wait { job, timeout } => {
            let wait_ms = timeout.map(|seconds| seconds.saturating_mul(1000));
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

    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => super::report_and_exit(Err(failure), global.json),
    }
}

/// Makes a call whose response is a job.
fn call_for_job<F>(address: &str, global: &GlobalArgs, call: F) -> Result<Job, CliError>
where
    F: AsyncFnOnce(Client) -> Result<Option<Job>, CallError>,
{
    let job =
        connection::call_address(address, global, async |client: Client| Ok(call(client).await?))?;
    job.ok_or_else(|| CliError::Daemon("the response has no job".to_owned()))
}

fn submit(address: &str, global: &GlobalArgs, args: SubmitArgs) -> Result<u8, CliError> {
    let request = SubmitJobRequest {
        tool: args.tool,
        params_json: args.parameters.into_json()?,
        dialect: args.dialect.unwrap_or_default(),
        queue: Some(args.queue),
        priority: Some(args.priority),
        fleet: args.fleet,
        retry_if_lost: args.retry_if_lost,
        store_artifacts: args.store_artifacts,
        ..SubmitJobRequest::default()
    };

    let wait = args.wait;
    let queue = request.queue.clone().unwrap_or_default();
    let job = call_for_job(address, global, async |client| {
        let SubmitJobResponse { job, unserved } = client.submit_job(request).await?;
        if unserved {
            output::note(&format!(
                "no daemon of the fleet has served the queue {queue:?} in this workspace so far: the job waits for one"
            ));
        }
        match job {
            Some(job) if wait => {
                let request = WaitJobRequest { job_id: job.job_id.clone(), wait_ms: None };
                let waited = client.wait_job(request).await.inspect_err(|_| {
                    let id = &job.job_id;
                    output::note(&format!(
                        "the job {id} was submitted: `jig job wait {id}` waits for it"
                    ));
                });
                Ok(waited?.job)
            }
            submitted => Ok(submitted),
        }
    })?;

    if wait {
        return print_and_code(&job, global);
    }

    if global.json {
        output::write_json(&job_json(&job))?;
    } else {
        output::write_stdout(format!("{}\n", job.job_id).as_bytes())?;
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
        let mut remaining = args.number;
        while remaining > 0 {
            let request = ListJobsRequest {
                states: states.clone(),
                queue: args.queue.clone().unwrap_or_default(),
                page_size: Some(remaining.min(MAX_JOBS_PER_PAGE)),
                page_token,
            };
            let page = client.list_jobs(request).await?;
            remaining -= u32::try_from(page.jobs.len()).unwrap_or(remaining).min(remaining);
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
        output::note(match (args.state.is_empty(), args.queue.is_some()) {
            (true, false) => "there are no jobs",
            (false, false) => "no job matches --state",
            (true, true) => "no job matches --queue",
            (false, true) => "no job matches --state and --queue",
        });
    } else {
        print_list(&jobs)?;
    }
    Ok(exit::SUCCESS)
}

/// Prints a job after waiting for it. Returns its exit code.
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
