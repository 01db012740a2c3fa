//! The log of jobs: what was acknowledged, how far it is, and what came of it.

use std::{
    fmt,
    sync::{Arc, LazyLock},
    time::SystemTime,
};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Row, params, types::Value};

use super::{
    database::{Database, DatabaseError},
    requests,
    row_retention::{ExcessRows, RetainedTable, RetentionLimits, RetentionTrigger},
    unix_millis,
};

/// Where what is kept is found.
const TABLE: RetainedTable = RetainedTable { name: "job", bytes_column: "result_bytes" };
/// In memory: the jobs that ran when the daemon before this one died, until it is written down that they are
/// lost, which needs room.
const CREATE_LOST_TABLE: &str = "CREATE TEMP TABLE IF NOT EXISTS lost (id TEXT PRIMARY KEY, ended_ms INTEGER NOT NULL) STRICT, WITHOUT ROWID";
/// How far a job is.
const STATE_EXPRESSION: &str = "CASE WHEN id IN (SELECT id FROM lost) THEN 'lost' ELSE state END";
/// What is read of a row, in the order of [`read`].
static COLUMNS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "id, workspace, session, principal, tool, queue, priority, {STATE_EXPRESSION}, trace, submitted_ms, started_ms, coalesce(ended_ms, (SELECT lost.ended_ms FROM lost WHERE lost.id = job.id)), step, request, dialect, given_id"
    )
});

/// Jobs that are looked at before it is somebody else's turn: a millisecond.
const SCAN_BATCH_ROWS: u32 = 256;

/// The log.
#[derive(Debug, Clone)]
pub(crate) struct JobTable {
    database: Database,
    bounds: RetentionLimits,
    retention_trigger: Arc<RetentionTrigger>,
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum JobState {
    /// It waits for its turn.
    Queued,
    /// It is done.
    Running,
    /// The tool could do it.
    Succeeded,
    /// The tool could not.
    Failed,
    /// It was ended, or not begun.
    Cancelled,
    /// The daemon died while it ran.
    Lost,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    /// Its id (a ULID).
    pub(crate) id: String,
    /// Name of its workspace.
    pub(crate) workspace: String,
    /// The session whose step it is.
    pub(crate) session: String,
    /// Who submitted it.
    pub(crate) principal: String,
    /// The request id that it was submitted with.
    pub(crate) request_id: Option<String>,
    /// The dialect that its tool is of; empty, where that is of the contract.
    pub(crate) dialect: String,
    /// The id that the model gave its call; may be empty.
    pub(crate) model_call_id: String,
    /// The tool that it calls.
    pub(crate) tool: String,
    /// The queue that it waits in.
    pub(crate) queue: String,
    /// Who comes first: higher before lower.
    pub(crate) priority: i32,
    /// How far it is.
    pub(crate) state: JobState,
    /// The trace that it is part of; may be empty.
    pub(crate) trace: String,
    /// When it was submitted.
    pub(crate) submitted: SystemTime,
    /// When it started.
    pub(crate) started: Option<SystemTime>,
    /// When it ended.
    pub(crate) ended: Option<SystemTime>,
    /// Its step of the session, once it runs.
    pub(crate) step: Option<u64>,
}

/// Which jobs to list.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobQuery {
    /// Name of their workspace.
    pub(crate) workspace: String,
    /// Their states; all, where this is empty.
    pub(crate) states: Vec<JobState>,
    /// Their tools, those of dialects as [`named`]; all, where there are none.
    pub(crate) tools: Option<Vec<String>>,
    /// Their queue; all, where there is none.
    pub(crate) queue: Option<String>,
    /// Only those that were submitted before this one.
    pub(crate) before: Option<String>,
    /// How many at most.
    pub(crate) limit: u32,
}

/// What was found among some jobs.
#[derive(Debug)]
struct ScannedJobs {
    jobs: Vec<Job>,
    /// The last of those that were looked at, where there may be more.
    resume_before: Option<String>,
}

impl JobTable {
    /// The log in `database`, which keeps so much of jobs that have ended. Those that ran when the daemon
    /// before this one died are lost; answers those that wait, in the order in which they were submitted.
    pub(crate) async fn open(
        database: Database,
        bounds: RetentionLimits,
    ) -> Result<(Self, Vec<Job>), DatabaseError> {
        let queued = database
            .apply(move |connection| {
                connection.execute_batch(CREATE_LOST_TABLE)?;
                connection.execute(
                    "INSERT OR IGNORE INTO lost SELECT id, ?1 FROM job WHERE state = ?2",
                    params![unix_millis::now(), JobState::Running.name()],
                )?;
                let sql = format!("SELECT {} FROM job WHERE state = ?1 ORDER BY id", *COLUMNS);
                let mut select = connection.prepare(&sql)?;
                let rows = select.query_map([JobState::Queued.name()], job_from_row)?;
                rows.collect::<rusqlite::Result<Vec<_>>>()
            })
            .await?;
        let log =
            Self { database, bounds, retention_trigger: Arc::new(RetentionTrigger::new(bounds)) };
        Ok((log, queued))
    }

    /// Keeps a job that waits.
    pub(crate) async fn insert(&self, job: Job) -> Result<(), DatabaseError> {
        self.execute(move |connection| {
            if job.request_id.is_some() {
                // An id can be used again once it is not kept any more: it is the newer one's then.
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

    /// Keeps that a job runs.
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

    /// Keeps that a job waits again: nothing of it was done.
    pub(crate) async fn record_requeue(&self, id: String) -> Result<(), DatabaseError> {
        self.execute(move |connection| {
            connection
                .prepare_cached("UPDATE job SET state = ?2, started_ms = NULL WHERE id = ?1")?
                .execute(params![id, JobState::Queued.name()])
        })
        .await
    }

    /// Keeps which step of its session a job is.
    pub(crate) async fn record_step(&self, id: String, step: u64) -> Result<(), DatabaseError> {
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        self.execute(move |connection| {
            connection
                .prepare_cached("UPDATE job SET step = ?2 WHERE id = ?1")?
                .execute(params![id, step])
        })
        .await
    }

    /// Keeps how a job has ended.
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

    /// A job of a workspace, and its result.
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

    /// The job that was submitted with a request id.
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

    /// The jobs of a selection, those that were submitted last first. Few may be of it, so that all of a
    /// workspace are looked through: a few at a time, that what others ask meanwhile is done in between.
    pub(crate) async fn list(&self, selection: JobQuery) -> Result<Vec<Job>, DatabaseError> {
        let number = selection.limit as usize;
        let mut found = Vec::new();
        let mut before = selection.before.clone();
        loop {
            let selection = JobQuery {
                before,
                limit: u32::try_from(number - found.len()).unwrap_or(u32::MAX),
                ..selection.clone()
            };
            let looked =
                self.database.read(move |connection| scan_batch(connection, &selection)).await?;
            found.extend(looked.jobs);
            match looked.resume_before {
                Some(rest) if found.len() < number => before = Some(rest),
                _ => return Ok(found),
            }
        }
    }

    /// What tells when to [`Self::retain`].
    pub(crate) fn retention_trigger(&self) -> Arc<RetentionTrigger> {
        Arc::clone(&self.retention_trigger)
    }

    /// Writes down which jobs were lost, and removes what is not to be kept any more; never what has not
    /// ended.
    pub(crate) async fn apply_retention(&self) -> Result<(), DatabaseError> {
        self.execute(mark_lost).await?;
        let bounds = self.bounds;
        loop {
            let is_all = self.database.apply(move |connection| delete_batch(connection, bounds));
            if is_all.await? {
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

/// A tool of a dialect among others in a [`Selection`].
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

/// Removes some of what is not to be kept any more; answers whether that was all.
fn delete_batch(connection: &Connection, bounds: RetentionLimits) -> rusqlite::Result<bool> {
    let surplus = ExcessRows::find(connection, TABLE, bounds)?;
    let mut delete = connection.prepare_cached("DELETE FROM job WHERE rowid = ?1")?;
    for &row in surplus.rows.iter().chain(&surplus.oversized) {
        requests::mark_job_evicted(connection, row)?;
        delete.execute([row])?;
    }
    Ok(!surplus.is_full())
}

/// Looks for jobs of a selection among the first that it may be about.
fn scan_batch(connection: &Connection, selection: &JobQuery) -> rusqlite::Result<ScannedJobs> {
    let before = selection.before.as_deref();
    let sql = "SELECT min(id), count(*) FROM (SELECT id FROM job WHERE workspace = ?1 AND (?2 IS NULL OR id < ?2) ORDER BY id DESC LIMIT ?3)";
    let (first, count): (Option<String>, u32) = connection
        .prepare_cached(sql)?
        .query_row(params![selection.workspace, before, SCAN_BATCH_ROWS], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    let Some(first) = first else {
        return Ok(ScannedJobs { jobs: Vec::new(), resume_before: None });
    };
    let mut sql = format!("SELECT {} FROM job WHERE workspace = ? AND id >= ?", *COLUMNS);
    let mut values = vec![Value::from(selection.workspace.clone()), first.clone().into()];
    if !selection.states.is_empty() {
        let marks = vec!["?"; selection.states.len()].join(", ");
        sql += &format!(" AND {STATE_EXPRESSION} IN ({marks})");
        let names = selection.states.iter().map(|state| state.name().to_owned());
        values.extend(names.map(Value::from));
    }
    if let Some(tools) = &selection.tools {
        let marks = vec!["?"; tools.len()].join(", ");
        sql += &format!(
            " AND CASE dialect WHEN '' THEN tool ELSE dialect || '/' || tool END IN ({marks})"
        );
        values.extend(tools.iter().cloned().map(Value::from));
    }
    if let Some(queue) = &selection.queue {
        sql += " AND queue = ?";
        values.push(queue.clone().into());
    }
    if let Some(before) = before {
        sql += " AND id < ?";
        values.push(before.to_owned().into());
    }
    sql += " ORDER BY id DESC LIMIT ?";
    values.push(i64::from(selection.limit).into());
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

    /// Whether it has ended.
    pub(crate) fn is_final(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The time, as precisely as the log keeps it.
pub(crate) fn now_to_millis() -> SystemTime {
    unix_millis::to_time(unix_millis::now())
}

#[cfg(test)]
mod tests;
