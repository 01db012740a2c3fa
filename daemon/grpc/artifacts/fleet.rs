//! Artifacts that the fleet has stored with the results of its jobs.

use super::{
    ArtifactServiceHandler, leads_out, not_found_error,
    stream::{ArtifactSource, FleetObject},
};
use crate::{
    api::v1::{
        ArtifactInfo, FleetArtifact, ListArtifactsRequest, ListArtifactsResponse,
        ReadArtifactRequest,
    },
    daemon::{
        error::{Error, Reason},
        grpc::truncate_page,
        pipeline::{
            context::CallContext,
            fleet_jobs::{FleetJob, is_fleet_job_id},
        },
        store::session::StepId,
        tool::page_token::{PageFilterHash, decode_page_token, encode_page_token},
    },
};

impl ArtifactServiceHandler {
    /// Opens a stored artifact of a job.
    pub(super) async fn open_fleet_object(
        &self,
        context: &CallContext,
        request: &ReadArtifactRequest,
    ) -> Result<ArtifactSource, Error> {
        let ReadArtifactRequest { job_id, path, .. } = request;
        require_fleet_job_id(job_id)?;
        let (fleet, job) = self.pipeline.find_fleet_job(context, job_id).await?;
        let artifacts = stored_artifacts(&job)?;
        let Some(artifact) = artifacts.iter().find(|artifact| artifact.path == *path) else {
            if leads_out(path) {
                return Err(not_found_error(path));
            }
            let text = format!(
                "the job {job_id} has no artifact {path:?}: give the path as its result has it (ListArtifacts with job_id lists them)"
            );
            return Err(missing_error(&job, text).with_metadata("path", path));
        };

        if !artifact.missing_reason.is_empty() {
            let text = format!(
                "the artifact {path:?} of the job {job_id} was not stored: {}",
                artifact.missing_reason
            );
            return Err(missing_error(&job, text).with_metadata("path", path));
        }
        if artifact.object.is_empty() {
            return Ok(ArtifactSource::Empty);
        }
        match fleet.open_artifact(&artifact.object).await? {
            Some(reader) => {
                Ok(ArtifactSource::Fleet(FleetObject::new(reader, artifact.size_bytes)))
            }
            None => {
                let text = format!("the artifact {path:?} of the job {job_id} is no longer stored");
                Err(missing_error(&job, text).with_metadata("path", path))
            }
        }
    }

    /// Lists the stored artifacts of a job.
    pub(super) async fn list_fleet_artifacts(
        &self,
        context: &CallContext,
        request: ListArtifactsRequest,
    ) -> Result<ListArtifactsResponse, Error> {
        let ListArtifactsRequest { page_size, page_token, step, job_id } = request;
        require_fleet_job_id(&job_id)?;
        let step_text = step.map(|step| step.to_string());
        let filters =
            ["artifacts of a fleet job", &*job_id, step_text.as_deref().unwrap_or_default()];
        let filters = PageFilterHash::new(&filters, &[]);
        let after = page_token.filter(|token| !token.is_empty());
        let after = after.map(|token| decode_page_token(&token, &filters)).transpose()?;

        let (_fleet, job) = self.pipeline.find_fleet_job(context, &job_id).await?;
        // In the order of their paths.
        let listed = stored_artifacts(&job)?.iter().filter_map(wire_artifact);
        let mut artifacts: Vec<_> = listed
            .filter(|artifact| step.is_none_or(|step| artifact.step == step))
            .filter(|artifact| after.as_ref().is_none_or(|after| artifact.path > *after))
            .collect();
        let last = truncate_page(&mut artifacts, page_size.unwrap_or_default() as usize);
        let last = last.map(|last| encode_page_token(&filters, &last.path));
        Ok(ListArtifactsResponse { next_page_token: last.unwrap_or_default(), artifacts })
    }
}

fn require_fleet_job_id(id: &str) -> Result<(), Error> {
    if is_fleet_job_id(id) {
        return Ok(());
    }
    let text = "must be the id of a fleet job: artifacts of other jobs belong to their session";
    Err(Error::invalid_field("job_id", text))
}

/// Returns the artifacts of a job that has ended and stores them.
fn stored_artifacts(job: &FleetJob) -> Result<&[FleetArtifact], Error> {
    let id = &job.job.job_id;
    match &job.artifacts {
        None => {
            let text = format!(
                "the job {id} was submitted without store_artifacts: its artifacts are only on the daemon that ran it, in the session of the job"
            );
            Err(missing_error(job, text))
        }
        Some(_) if job.job.end_time.is_none() => {
            let text = format!(
                "the job {id} has not ended: wait for it, or watch its output (JobService.WatchJob)"
            );
            Err(missing_error(job, text))
        }
        Some(artifacts) => Ok(artifacts),
    }
}

fn missing_error(job: &FleetJob, text: String) -> Error {
    Error::new(Reason::ArtifactNotFound, text).with_metadata("job_id", &job.job.job_id)
}

/// Returns an artifact as in lists. `None` for one that is empty or missing.
fn wire_artifact(artifact: &FleetArtifact) -> Option<ArtifactInfo> {
    if artifact.object.is_empty() {
        return None;
    }
    Some(ArtifactInfo {
        path: artifact.path.clone(),
        size_bytes: artifact.size_bytes,
        modify_time: artifact.modify_time,
        step: StepId::from_artifact_path(&artifact.path).map_or(0, StepId::number),
    })
}
