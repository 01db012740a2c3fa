//! The table of jobs: parameters of the submission, state, and result.

use std::{
    fmt,
    sync::{Arc, LazyLock},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Row, params, types::Value};

use super::{
    database::{Database, DatabaseError},
    fleet_starts, requests,
    retention::rows::{ExcessRows, RetainedTable, RetentionLimits, RetentionTrigger},
    unix_millis,
};

#[cfg(feature = "fleet")]
mod fleet;

const TABLE: RetainedTable = RetainedTable { name: "job", bytes_column: "result_bytes" };
/// In memory: the jobs that were running when the previous daemon died. Marking them as lost in the
/// file needs disk space, so that happens later.
const CREATE_LOST_TABLE: &str = "CREATE TEMP TABLE IF NOT EXISTS lost (id TEXT PRIMARY KEY, ended_ms INTEGER NOT NULL) STRICT, WITHOUT ROWID";
const STATE_EXPRESSION: &str = "CASE WHEN id IN (SELECT id FROM lost) THEN 'lost' ELSE state END";
/// The columns that [`job_from_row`] expects.
static COLUMNS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "id, workspace, session, principal, tool, queue, priority, {STATE_EXPRESSION}, trace, submitted_ms, started_ms, coalesce(ended_ms, (SELECT lost.ended_ms FROM lost WHERE lost.id = job.id)), step, request, dialect, given_id"
    )
});

/// Rows that a list scans per command, about a millisecond. Other commands run in between.
const SCAN_BATCH_ROWS: u32 = 256;

#[derive(Debug, Clone)]
pub(crate) struct JobTable {
    database: Database,
    limits: RetentionLimits,
    retention_trigger: Arc<RetentionTrigger>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum JobState {
    Queued,
    Running,
    Succeeded,
    /// The tool reported a failure.
    Failed,
    /// Stopped, or cancelled before it started.
    Cancelled,
    /// The daemon died while it was running.
    Lost,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    /// A ULID.
    pub(crate) id: String,
    pub(crate) workspace: String,
    pub(crate) session: String,
    /// The caller that submitted it.
    pub(crate) principal: String,
    /// The request id of the submission.
    pub(crate) request_id: Option<String>,
    /// The dialect of its tool; empty for canonical tools.
    pub(crate) dialect: String,
    /// The id that the model gave its call; may be empty.
    pub(crate) model_call_id: String,
    pub(crate) tool: String,
    pub(crate) queue: String,
    /// Higher values start first.
    pub(crate) priority: i32,
    pub(crate) state: JobState,
    /// The trace that it is part of; may be empty.
    pub(crate) trace: String,
    pub(crate) submitted: SystemTime,
    pub(crate) started: Option<SystemTime>,
    pub(crate) ended: Option<SystemTime>,
    /// The step of the session, once it has started.
    pub(crate) step: Option<u64>,
}

/// A job with a request id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SubmittedJob {
    pub(crate) request_id: String,
    pub(crate) workspace: String,
    pub(crate) id: String,
}

/// Selects the jobs to list.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobQuery {
    pub(crate) workspace: String,
    /// All states if empty.
    pub(crate) states: Vec<JobState>,
    /// Names of tools; those of dialects as [`qualified_tool_name`]. All tools if `None`.
    pub(crate) tools: Option<Vec<String>>,
    /// All queues if `None`.
    pub(crate) queue: Option<String>,
    /// Only jobs submitted before the one of this id.
    pub(crate) before: Option<String>,
    pub(crate) limit: u32,
}

/// The result of scanning one batch of rows.
#[derive(Debug)]
struct ScannedJobs {
    jobs: Vec<Job>,
    /// The last row of the batch, if there may be more.
    resume_before: Option<String>,
}

impl JobTable {
    /// Creates the table's interface; `limits` apply to ended jobs. Jobs that were running when the
    /// previous daemon died are lost, and so are queued ones of the fleet whose rows may be older than
    /// their begin. Returns the queued jobs in the order of their submission.
    pub(crate) async fn open(
        database: Database,
        limits: RetentionLimits,
    ) -> Result<(Self, Vec<Job>), DatabaseError> {
        let queued = database
            .apply(move |connection| {
                connection.execute_batch(CREATE_LOST_TABLE)?;
                connection.execute(
                    "INSERT OR IGNORE INTO lost SELECT id, ?1 FROM job WHERE state = ?2",
                    params![unix_millis::now(), JobState::Running.name()],
                )?;
                if !fleet_starts::has_all_writes(connection)? {
                    connection.execute(
                        "INSERT OR IGNORE INTO lost SELECT id, ?1 FROM job WHERE state = ?2 AND substr(request, 1, length(?3)) = ?3",
                        params![unix_millis::now(), JobState::Queued.name(), fleet_starts::UNSETTLED_PREFIX],
                    )?;
                }
                let sql = format!(
                    "SELECT {} FROM job WHERE state = ?1 AND id NOT IN (SELECT id FROM lost) ORDER BY id",
                    *COLUMNS
                );
                let mut select = connection.prepare(&sql)?;
                let rows = select.query_map([JobState::Queued.name()], job_from_row)?;
                rows.collect::<rusqlite::Result<Vec<_>>>()
            })
            .await?;

        let retention_trigger = Arc::new(RetentionTrigger::new(limits));
        Ok((Self { database, limits, retention_trigger }, queued))
    }

    /// Inserts a queued job.
    pub(crate) async fn insert(&self, job: Job) -> Result<(), DatabaseError> {
        self.execute(move |connection| {
            if job.request_id.is_some() {
                // A caller may reuse a request id after it has expired. It then names the new job.
                connection
                    .prepare_cached("UPDATE job SET request = NULL WHERE request = ?1 AND workspace = ?2 AND principal = ?3")?
                    .execute(params![job.request_id, job.workspace, job.principal])?;
            }

            connection
                .prepare_cached(
                    "INSERT INTO job (id, workspace, session, principal, tool, queue, priority, state, trace, submitted_ms, request, dialect, given_id) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
                )?
                .execute(params![
                    job.id, job.workspace, job.session, job.principal, job.tool, job.queue, job.priority, job.state.name(), job.trace, unix_millis::from_time(job.submitted),
                    job.request_id, job.dialect, job.model_call_id
                ])
        })
        .await
    }

    /// Sets a job to running.
    pub(crate) async fn record_start(
        &self,
        id: String,
        time: SystemTime,
    ) -> Result<(), DatabaseError> {
        self.execute(move |connection| {
            connection
                .prepare_cached("UPDATE job SET state = ?2, started_ms = ?3 WHERE id = ?1")?
                .execute(params![id, JobState::Running.name(), unix_millis::from_time(time)])
        })
        .await
    }

    /// Sets a job back to queued: it had no effects.
    pub(crate) async fn record_requeue(&self, id: String) -> Result<(), DatabaseError> {
        self.execute(move |connection| {
            connection
                .prepare_cached("UPDATE job SET state = ?2, started_ms = NULL WHERE id = ?1")?
                .execute(params![id, JobState::Queued.name()])
        })
        .await
    }

    /// Stores the step of a job.
    pub(crate) async fn record_step(&self, id: String, step: u64) -> Result<(), DatabaseError> {
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        self.execute(move |connection| {
            connection
                .prepare_cached("UPDATE job SET step = ?2 WHERE id = ?1")?
                .execute(params![id, step])
        })
        .await
    }

    /// Stores the final state and the result of a job.
    pub(crate) async fn record_end(
        &self,
        id: String,
        state: JobState,
        time: SystemTime,
        result: Option<Bytes>,
    ) -> Result<(), DatabaseError> {
        let bytes = result.as_ref().map_or(0, Bytes::len);
        self.execute(move |connection| {
            connection
                .prepare_cached(
                    "UPDATE job SET state = ?2, ended_ms = ?3, result = ?4, result_bytes = ?5 WHERE id = ?1",
                )?
                .execute(params![
                    id, state.name(), unix_millis::from_time(time), result.as_deref(), i64::try_from(bytes).unwrap_or(i64::MAX)
                ])
        })
        .await?;
        self.retention_trigger.add_row(bytes);
        Ok(())
    }

    /// Returns a job of a workspace, and its result.
    pub(crate) async fn find(
        &self,
        workspace: String,
        id: String,
    ) -> Result<Option<(Job, Option<Bytes>)>, DatabaseError> {
        self.database
            .read(move |connection| {
                let sql = format!(
                    "SELECT {}, result FROM job WHERE id = ?1 AND workspace = ?2",
                    *COLUMNS
                );
                connection
                    .prepare_cached(&sql)?
                    .query_row(params![id, workspace], |row| {
                        let result: Option<Vec<u8>> = row.get("result")?;
                        Ok((job_from_row(row)?, result.map(Bytes::from)))
                    })
                    .optional()
            })
            .await
    }

    /// Returns the job that was submitted with a request id.
    pub(crate) async fn find_by_request_id(
        &self,
        principal: String,
        workspace: String,
        request: String,
    ) -> Result<Option<Job>, DatabaseError> {
        self.database
            .read(move |connection| {
                let sql = format!(
                    "SELECT {} FROM job WHERE request = ?1 AND workspace = ?2 AND principal = ?3",
                    *COLUMNS
                );
                connection
                    .prepare_cached(&sql)?
                    .query_row(params![request, workspace, principal], job_from_row)
                    .optional()
            })
            .await
    }

    /// Lists the jobs with request ids from `first` on and before `end`, in no order.
    pub(crate) async fn list_by_request_ids(
        &self,
        first: String,
        end: String,
    ) -> Result<Vec<SubmittedJob>, DatabaseError> {
        self.database
            .read(move |connection| {
                let sql =
                    "SELECT request, workspace, id FROM job WHERE request >= ?1 AND request < ?2";
                let mut select = connection.prepare_cached(sql)?;
                let rows = select.query_map(params![first, end], |row| {
                    Ok(SubmittedJob {
                        request_id: row.get(0)?,
                        workspace: row.get(1)?,
                        id: row.get(2)?,
                    })
                })?;
                rows.collect()
            })
            .await
    }

    /// Lists the selected jobs, newest first.
    ///
    /// Few jobs may match, in which case all of the workspace are scanned. The scan runs in batches,
    /// between which the database serves other commands.
    pub(crate) async fn list(&self, query: JobQuery) -> Result<Vec<Job>, DatabaseError> {
        let limit = query.limit as usize;
        let mut jobs = Vec::new();
        let mut before = query.before.clone();
        loop {
            let batch = JobQuery {
                before,
                limit: u32::try_from(limit - jobs.len()).unwrap_or(u32::MAX),
                ..query.clone()
            };
            let scanned =
                self.database.read(move |connection| scan_batch(connection, &batch)).await?;

            jobs.extend(scanned.jobs);
            match scanned.resume_before {
                Some(last) if jobs.len() < limit => before = Some(last),
                _ => return Ok(jobs),
            }
        }
    }

    /// Returns the time from its end that a job is stored.
    pub(crate) fn retention(&self) -> Duration {
        self.limits.max_age
    }

    /// Returns the trigger for [`Self::apply_retention`].
    pub(crate) fn retention_trigger(&self) -> Arc<RetentionTrigger> {
        Arc::clone(&self.retention_trigger)
    }

    /// Stores which jobs were lost, then removes expired and excess rows. Removes only ended jobs.
    pub(crate) async fn apply_retention(&self) -> Result<(), DatabaseError> {
        self.execute(mark_lost).await?;

        let limits = self.limits;
        loop {
            let delete = move |connection: &Connection| delete_batch(connection, limits);
            let is_done = self.database.apply(delete).await?;
            if is_done {
                return self.database.vacuum().await;
            }
        }
    }

    async fn execute(
        &self,
        change: impl Fn(&Connection) -> rusqlite::Result<usize> + Send + 'static,
    ) -> Result<(), DatabaseError> {
        self.database.apply(change).await.map(drop)
    }
}

/// Returns the name of a dialect's tool in a [`JobQuery`].
pub(crate) fn qualified_tool_name(dialect: &str, tool: &str) -> String {
    format!("{dialect}/{tool}")
}

fn mark_lost(connection: &Connection) -> rusqlite::Result<usize> {
    connection.execute(
        "UPDATE job SET state = ?1, ended_ms = lost.ended_ms FROM lost WHERE lost.id = job.id",
        [JobState::Lost.name()],
    )?;
    connection.execute("DELETE FROM lost", [])
}

/// Removes one batch of expired or excess rows. Returns whether none remain.
fn delete_batch(connection: &Connection, limits: RetentionLimits) -> rusqlite::Result<bool> {
    let excess = ExcessRows::find(connection, TABLE, limits)?;
    let mut delete =
        connection.prepare_cached("DELETE FROM job WHERE rowid = ?1 RETURNING request")?;
    let mut has_unsettled = false;
    for &row in excess.rows.iter().chain(&excess.oversized) {
        requests::mark_job_evicted(connection, row)?;
        let request: Option<Option<String>> =
            delete.query_row([row], |row| row.get(0)).optional()?;
        let request = request.flatten().unwrap_or_default();
        has_unsettled |= request.starts_with(fleet_starts::UNSETTLED_PREFIX);
    }
    if has_unsettled {
        fleet_starts::forget(connection)?;
    }
    Ok(!excess.is_full())
}

/// Scans the next [`SCAN_BATCH_ROWS`] rows of the workspace for jobs that match.
fn scan_batch(connection: &Connection, query: &JobQuery) -> rusqlite::Result<ScannedJobs> {
    let before = query.before.as_deref();
    let sql = "SELECT min(id), count(*) FROM (SELECT id FROM job WHERE workspace = ?1 AND (?2 IS NULL OR id < ?2) ORDER BY id DESC LIMIT ?3)";
    let (first, count): (Option<String>, u32) = connection
        .prepare_cached(sql)?
        .query_row(params![query.workspace, before, SCAN_BATCH_ROWS], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    let Some(first) = first else {
        return Ok(ScannedJobs { jobs: Vec::new(), resume_before: None });
    };

    let mut sql = format!("SELECT {} FROM job WHERE workspace = ? AND id >= ?", *COLUMNS);
    let mut values = vec![Value::from(query.workspace.clone()), first.clone().into()];
    if !query.states.is_empty() {
        let marks = vec!["?"; query.states.len()].join(", ");
        sql += &format!(" AND {STATE_EXPRESSION} IN ({marks})");
        let names = query.states.iter().map(|state| state.name().to_owned());
        values.extend(names.map(Value::from));
    }
    if let Some(tools) = &query.tools {
        let marks = vec!["?"; tools.len()].join(", ");
        sql += &format!(
            " AND CASE dialect WHEN '' THEN tool ELSE dialect || '/' || tool END IN ({marks})"
        );
        values.extend(tools.iter().cloned().map(Value::from));
    }
    if let Some(queue) = &query.queue {
        sql += " AND queue = ?";
        values.push(queue.clone().into());
    }
    if let Some(before) = before {
        sql += " AND id < ?";
        values.push(before.to_owned().into());
    }
    sql += " ORDER BY id DESC LIMIT ?";
    values.push(i64::from(query.limit).into());

    let mut select = connection.prepare_cached(&sql)?;
    let rows = select.query_map(rusqlite::params_from_iter(values), job_from_row)?;
    Ok(ScannedJobs {
        jobs: rows.collect::<Result<_, _>>()?,
        resume_before: (count == SCAN_BATCH_ROWS).then_some(first),
    })
}

fn job_from_row(row: &Row<'_>) -> rusqlite::Result<Job> {
    let state: String = row.get(7)?;
    let number: Option<i64> = row.get(12)?;
    Ok(Job {
        id: row.get(0)?,
        workspace: row.get(1)?,
        session: row.get(2)?,
        principal: row.get(3)?,
        tool: row.get(4)?,
        queue: row.get(5)?,
        priority: row.get(6)?,
        state: JobState::from_name(&state).unwrap_or(JobState::Lost),
        trace: row.get(8)?,
        submitted: unix_millis::to_time(row.get(9)?),
        started: row.get::<_, Option<i64>>(10)?.map(unix_millis::to_time),
        ended: row.get::<_, Option<i64>>(11)?.map(unix_millis::to_time),
        step: number.and_then(|step| u64::try_from(step).ok()),
        request_id: row.get(13)?,
        dialect: row.get(14)?,
        model_call_id: row.get(15)?,
    })
}

impl JobState {
    const ALL: [Self; 6] =
        [Self::Queued, Self::Running, Self::Succeeded, Self::Failed, Self::Cancelled, Self::Lost];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    pub(crate) fn is_final(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the present time, rounded to the precision of the table.
pub(crate) fn now_to_millis() -> SystemTime {
    unix_millis::to_time(unix_millis::now())
}

#[cfg(test)]
mod tests;
