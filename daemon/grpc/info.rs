//! `jig.v1.DaemonService`: version, isolation, limits, workspaces and counters of the daemon.

use std::{
    sync::Arc,
    time::{Instant, SystemTime},
};

use tonic::{Request, Response, Status};

use super::{metadata::call_context, status::to_logged_status};
use crate::{
    api::v1::{self, GetInfoRequest, GetInfoResponse, daemon_service_server::DaemonService},
    daemon::{
        config::keys::AccessRole,
        egress::proxy::EgressProxy,
        netpolicy::rules::NetworkRules,
        pipeline::{Pipeline, access::principal::Principal, validation::default_timeout},
        sandbox::{
            level::{Isolation, IsolationLevel},
            limits::RunLimits,
            pool::SandboxPool,
            pools::SandboxPools,
            stage::{Stage, StageFailure},
            wire::SandboxIdentity,
        },
        tool::{Tool as _, WorkspaceContext, run::RunCommand},
    },
};

#[derive(Debug)]
pub(crate) struct DaemonServiceHandler {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) sandboxes: Arc<SandboxPools>,
    /// The lowest isolation of all workspaces.
    pub(crate) isolation: Arc<Isolation>,
    /// Set if commands use the egress proxy.
    pub(crate) proxy: Option<Arc<EgressProxy>>,
    /// The user that each workspace's commands run as, if known.
    pub(crate) identities: Vec<Option<SandboxIdentity>>,
    /// Limits of each run.
    pub(crate) limits: RunLimits,
    pub(crate) max_concurrent_runs: usize,
    /// When the daemon started, by both clocks.
    pub(crate) started: (SystemTime, Instant),
}

#[tonic::async_trait]
impl DaemonService for DaemonServiceHandler {
    async fn get_info(
        &self,
        request: Request<GetInfoRequest>,
    ) -> Result<Response<GetInfoResponse>, Status> {
        let context = call_context(&request)?;
        // A key whose workspaces are all gone may still ask, without naming one.
        let workspace_context = match self.pipeline.resolve_workspace(&context) {
            Ok(found) => Some(found),
            Err(_) if context.workspace.is_none() => None,
            Err(error) => return Err(to_logged_status(&error, &context.call_id)),
        };

        let principal = context.principal;
        let (start_time, started) = self.started;
        let kernel = rustix::system::uname();
        Ok(Response::new(GetInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: kernel.release().to_string_lossy().into_owned(),
            pid: std::process::id(),
            start_time: Some(start_time.into()),
            uptime_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            isolation: Some(self.wire_isolation(&principal)),
            run_limits: Some(self.wire_limits(workspace_context.as_deref())),
            workspaces: self.wire_workspaces(&principal),
            counts: Some(self.wire_counts(&principal)),
            egress: self.wire_egress(&principal),
            caller: Some(wire_caller(&principal)),
            commit: env!("JIG_COMMIT").to_owned(),
            commit_date: env!("JIG_COMMIT_DATE").to_owned(),
            workspaces_on_demand: self.wire_workspaces_on_demand(),
        }))
    }
}

impl DaemonServiceHandler {
    fn wire_isolation(&self, principal: &Principal) -> v1::Isolation {
        let isolation = &self.isolation;
        let layers = isolation.layers().into_iter().map(|layer| v1::IsolationLayer {
            name: layer.name.to_owned(),
            applied: layer.applied,
            detail: layer.detail,
            remedy: layer.remedy.to_owned(),
        });
        let wire_failure = |level: &str, failure: &StageFailure| v1::SandboxFailure {
            stage: failure.stage.name().to_owned(),
            errno: failure.errno_name(),
            message: failure.to_string(),
            remedy: failure.stage.remedy().to_owned(),
            workspace: Some(isolation.workspace.clone())
                .filter(|workspace| principal.can_see_workspace(workspace))
                .unwrap_or_default(),
            level: level.to_owned(),
        };

        let failed_levels: Vec<_> = isolation
            .failed_levels
            .iter()
            .map(|failed| wire_failure(&failed.level.to_string(), &failed.failure))
            .collect();
        let failure = match failed_levels.first() {
            Some(failure) if !isolation.is_ready() => Some(failure.clone()),
            _ if self.sandboxes.is_keeper_dead() => Some(v1::SandboxFailure {
                stage: Stage::Launcher.name().to_owned(),
                message: "the keeper of sandboxes has died".to_owned(),
                remedy: "restart the daemon".to_owned(),
                ..v1::SandboxFailure::default()
            }),
            _ => None,
        };

        v1::Isolation {
            level: isolation.level.to_string(),
            minimum_level: isolation.minimum.to_string(),
            ready: isolation.is_ready() && !self.sandboxes.is_keeper_dead(),
            layers: layers.collect(),
            network: isolation.network.name().to_owned(),
            failure,
            failed_levels,
            summary: isolation.summary().unwrap_or_default(),
        }
    }

    fn wire_workspaces_on_demand(&self) -> Option<v1::WorkspacesOnDemand> {
        let creator = self.pipeline.require_creator().ok()?;
        let bounds = creator.config.bounds;
        Some(v1::WorkspacesOnDemand {
            max_bytes: bounds.max_bytes,
            max_files: bounds.max_files,
            quota: creator.enforcement().name().to_owned(),
        })
    }

    fn wire_egress(&self, principal: &Principal) -> Option<v1::Egress> {
        let proxy = self.proxy.as_ref()?;
        let NetworkRules { hosts, addresses, .. } = proxy.rules();
        // Connections are not counted by workspace.
        let connections_active = if principal.can_see_all_workspaces() {
            saturating_u32(proxy.active_connections())
        } else {
            0
        };
        Some(v1::Egress {
            allow_hosts: hosts.iter().map(ToString::to_string).collect(),
            allow_addresses: addresses.iter().map(ToString::to_string).collect(),
            connections_active,
        })
    }

    /// CPUs that a run may use at the same time; `None` if that is not enforced.
    fn cpu_limit(&self) -> Option<f64> {
        let cgroups = self.isolation.memory_accounting.cgroups()?;
        let millis = self.limits.milli_cpus.filter(|_| cgroups.has_cpu_controller())?;
        Some(f64::from(millis) / 1000.0)
    }

    /// The timeout of a run whose request has none, in seconds.
    ///
    /// It is no longer than the longest that a request may give, so that a client can send it.
    fn default_timeout_sec(&self, workspace_context: Option<&WorkspaceContext>) -> u32 {
        let run_settings = workspace_context.map(|context| &*context.run_settings);
        let spec = self.pipeline.catalog.tool(RunCommand::NAME);
        let timeout = spec.map(|spec| default_timeout(RunCommand::NAME, spec, run_settings));

        let seconds = timeout.map_or(0, |timeout| timeout.as_millis().div_ceil(1000));
        let longest = self.limits.wall_clock.map_or(u128::MAX, |wall| u128::from(wall.as_secs()));
        u32::try_from(seconds.min(longest)).unwrap_or(u32::MAX)
    }

    fn wire_limits(&self, workspace_context: Option<&WorkspaceContext>) -> v1::RunLimits {
        let artifact_bytes = self
            .pipeline
            .workspaces
            .configured()
            .first()
            .map_or(0, |context| context.run_settings.max_artifact_bytes);
        // At L1, temporary files are on a file system of the host, whose size is not limited.
        let has_own_tmp = self.isolation.level != IsolationLevel::L1;

        v1::RunLimits {
            default_timeout_sec: self.default_timeout_sec(workspace_context),
            processes: self.limits.processes,
            open_files: self.limits.open_files,
            open_files_hard: self.limits.open_files_hard,
            open_files_total: self.limits.open_files_total,
            epoll_watches: self.limits.epoll_watches,
            file_size_bytes: self.limits.file_size_bytes,
            tmp_bytes: if has_own_tmp { self.limits.tmp_bytes } else { 0 },
            tmp_inodes: if has_own_tmp { self.limits.tmp_inodes } else { 0 },
            artifact_bytes,
            concurrent_runs: saturating_u32(self.max_concurrent_runs),
            cpu_sec: self.limits.cpu_sec,
            cpus: self.cpu_limit(),
            memory_bytes: self.limits.memory_bytes,
            output_bytes: self.limits.output_bytes,
            wall_clock_sec: self
                .limits
                .wall_clock
                .map(|wall| u32::try_from(wall.as_secs()).unwrap_or(u32::MAX)),
        }
    }

    fn wire_workspaces(&self, principal: &Principal) -> Vec<v1::Workspace> {
        let contexts = self.pipeline.workspaces.configured().iter();
        contexts
            .map(|context| &context.workspace)
            .zip(&self.identities)
            .filter(|(workspace, _)| principal.can_see_workspace(workspace.name()))
            .map(|(workspace, identity)| v1::Workspace {
                name: workspace.name().to_owned(),
                mount_path: workspace.mount_path().display().to_string(),
                uid: identity.map_or(0, |identity| identity.uid),
                ownership: match identity {
                    None => "",
                    Some(identity) if identity.id_mapped => "idmapped",
                    Some(_) => "own",
                }
                .to_owned(),
                directory_id: {
                    let (device, inode) = workspace.identity();
                    format!("{device:x}-{inode:x}")
                },
            })
            .collect()
    }

    /// Counters of the workspaces that the caller can see.
    fn wire_counts(&self, principal: &Principal) -> v1::Counts {
        let contexts = self.pipeline.workspaces.visible_to(principal);
        let is_visible = |pool: &Arc<SandboxPool>| {
            contexts.iter().any(|context| Arc::ptr_eq(&context.sandbox_pool, pool))
        };
        // The admission queue and lost spans are not counted by workspace.
        let (active, queued, lost_spans) = if principal.can_see_all_workspaces() {
            let admission = &self.pipeline.admission;
            (admission.active(), admission.queued(), self.pipeline.telemetry.failed_spans())
        } else {
            (contexts.iter().map(|context| context.activity.active_calls()).sum(), 0, 0)
        };

        v1::Counts {
            calls_finished: contexts.iter().map(|context| context.activity.finished_calls()).sum(),
            calls_running: saturating_u32(active),
            calls_queued: saturating_u32(queued),
            runs_active: self.sandboxes.in_use_count(is_visible),
            sandboxes_idle: self.sandboxes.idle_count(is_visible),
            sandboxes_quarantined: self.sandboxes.quarantined_count(is_visible),
            spans_lost: lost_spans,
        }
    }
}

fn wire_caller(principal: &Principal) -> v1::Caller {
    let role = match principal.role() {
        AccessRole::Read => v1::Role::Read,
        AccessRole::Invoke => v1::Role::Invoke,
        AccessRole::Admin => v1::Role::Admin,
    };
    v1::Caller { name: principal.name().to_owned(), role: role.into() }
}

fn saturating_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
