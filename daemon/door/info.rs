//! `jig.v1.DaemonService`: what the daemon is and does.

use std::{
    sync::Arc,
    time::{Instant, SystemTime},
};

use tonic::{Request, Response, Status};

use super::{metadata::incoming, status::answer};
use crate::{
    api::v1::{self, GetInfoRequest, GetInfoResponse, daemon_service_server::DaemonService},
    daemon::{
        call::{Pipeline, access::principal::Principal},
        config::keys::Role,
        egress::proxy::Proxy,
        outside::policy::Policy,
        sandbox::{
            level::{Isolation, Level},
            limits::Limits,
            pool::Pool,
            sandboxes::Sandboxes,
            stage::{Failure, Stage},
            wire::Identity,
        },
    },
};

/// The service.
#[derive(Debug)]
pub(crate) struct Info {
    /// What calls go through.
    pub(crate) pipeline: Arc<Pipeline>,
    /// The sandboxes.
    pub(crate) sandboxes: Arc<Sandboxes>,
    /// What the probe has found.
    pub(crate) isolation: Arc<Isolation>,
    /// What connects commands to the world, where that is their network.
    pub(crate) proxy: Option<Arc<Proxy>>,
    /// As whom each workspace's commands run, where that is known.
    pub(crate) identities: Vec<Option<Identity>>,
    /// Limits of each run.
    pub(crate) limits: Limits,
    /// Runs at one time.
    pub(crate) concurrent_runs: usize,
    /// When the daemon started.
    pub(crate) started: (SystemTime, Instant),
}

#[tonic::async_trait]
impl DaemonService for Info {
    async fn get_info(
        &self,
        request: Request<GetInfoRequest>,
    ) -> Result<Response<GetInfoResponse>, Status> {
        let incoming = incoming(&request)?;
        if incoming.workspace.is_some() {
            let scene = self.pipeline.scene(&incoming);
            scene.map_err(|error| answer(&error, &incoming.call_id))?;
        }
        let principal = incoming.principal;
        let (start_time, started) = self.started;
        let kernel = rustix::system::uname();
        Ok(Response::new(GetInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: kernel.release().to_string_lossy().into_owned(),
            pid: std::process::id(),
            start_time: Some(start_time.into()),
            uptime_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            isolation: Some(self.isolation(&principal)),
            run_limits: Some(self.limits()),
            workspaces: self.workspaces(&principal),
            counts: Some(self.counts(&principal)),
            egress: self.egress(&principal),
            caller: Some(caller(&principal)),
        }))
    }
}

impl Info {
    fn isolation(&self, principal: &Principal) -> v1::Isolation {
        let isolation = &self.isolation;
        let layers = isolation.layers().into_iter().map(|layer| v1::IsolationLayer {
            name: layer.name.to_owned(),
            applied: layer.applied,
            detail: layer.detail,
            remedy: layer.remedy.to_owned(),
        });
        let told = |level: &str, failure: &Failure| v1::SandboxFailure {
            stage: failure.stage.name().to_owned(),
            errno: failure.errno_name(),
            message: failure.to_string(),
            remedy: failure.stage.remedy().to_owned(),
            workspace: Some(isolation.workspace.clone())
                .filter(|workspace| principal.sees(workspace))
                .unwrap_or_default(),
            level: level.to_owned(),
        };
        let refused: Vec<_> = isolation
            .refused
            .iter()
            .map(|refused| told(&refused.level.to_string(), &refused.failure))
            .collect();
        let failure = match refused.first() {
            Some(failure) if !isolation.is_ready() => Some(failure.clone()),
            _ if self.sandboxes.are_lost() => Some(v1::SandboxFailure {
                stage: Stage::Launcher.name().to_owned(),
                message: "the process that makes sandboxes has died".to_owned(),
                remedy: "restart the daemon".to_owned(),
                ..v1::SandboxFailure::default()
            }),
            _ => None,
        };
        v1::Isolation {
            level: isolation.level.to_string(),
            minimum_level: isolation.minimum.to_string(),
            ready: isolation.is_ready() && !self.sandboxes.are_lost(),
            layers: layers.collect(),
            network: isolation.network.name().to_owned(),
            failure,
            refused,
            summary: isolation.summary().unwrap_or_default(),
        }
    }

    fn egress(&self, principal: &Principal) -> Option<v1::Egress> {
        let proxy = self.proxy.as_ref()?;
        let Policy { hosts, addresses, .. } = proxy.policy();
        Some(v1::Egress {
            allow_hosts: hosts.iter().map(ToString::to_string).collect(),
            allow_addresses: addresses.iter().map(ToString::to_string).collect(),
            connections_active: match principal.sees_all() {
                true => saturate(proxy.active()),
                false => 0,
            },
        })
    }

    /// CPUs that a run may use at one time, where that is held.
    fn cpus(&self) -> Option<f64> {
        let cgroups = self.isolation.accounting.cgroups()?;
        let millis = self.limits.cpu_millis.filter(|_| cgroups.has_cpu())?;
        Some(f64::from(millis) / 1000.0)
    }

    fn limits(&self) -> v1::RunLimits {
        let default_timeout_sec =
            self.pipeline.catalog.tool("run").map_or(0, |tool| tool.options.default_timeout_sec);
        let artifact_bytes =
            self.pipeline.scenes.first().map_or(0, |scene| scene.settings.artifact_bytes);
        // At L1 temporary files are on a file system of the daemon's.
        let sized = self.isolation.level != Level::L1;
        v1::RunLimits {
            default_timeout_sec,
            processes: self.limits.processes,
            open_files: self.limits.open_files,
            open_files_hard: self.limits.open_files_hard,
            open_files_total: self.limits.open_files_total,
            epoll_watches: self.limits.epoll_watches,
            file_size_bytes: self.limits.file_size_bytes,
            tmp_bytes: if sized { self.limits.tmp_bytes } else { 0 },
            tmp_inodes: if sized { self.limits.tmp_inodes } else { 0 },
            artifact_bytes,
            concurrent_runs: saturate(self.concurrent_runs),
            cpu_sec: self.limits.cpu_sec,
            cpus: self.cpus(),
            memory_bytes: self.limits.memory_bytes,
            output_bytes: self.limits.output_bytes,
            wall_clock_sec: self
                .limits
                .wall
                .map(|wall| u32::try_from(wall.as_secs()).unwrap_or(u32::MAX)),
        }
    }

    fn workspaces(&self, principal: &Principal) -> Vec<v1::Workspace> {
        let scenes = self.pipeline.scenes.iter().zip(&self.identities);
        scenes
            .filter(|(scene, _)| principal.sees(scene.workspace.name()))
            .map(|(scene, identity)| v1::Workspace {
                name: scene.workspace.name().to_owned(),
                mount_path: scene.workspace.mount_path().display().to_string(),
                uid: identity.map_or(0, |identity| identity.uid),
                ownership: match identity {
                    None => "",
                    Some(identity) if identity.id_mapped => "idmapped",
                    Some(_) => "own",
                }
                .to_owned(),
                directory_id: {
                    let (device, inode) = scene.workspace.identity();
                    format!("{device:x}-{inode:x}")
                },
            })
            .collect()
    }

    /// Counts what goes on where the caller may look.
    fn counts(&self, principal: &Principal) -> v1::Counts {
        let scenes: Vec<_> = self.pipeline.scenes_of(principal).collect();
        let seen = |pool: &Arc<Pool>| {
            let mut scenes = scenes.iter();
            scenes.any(|scene| Arc::ptr_eq(&scene.sandboxes, pool))
        };
        let admission = &self.pipeline.admission;
        let (active, waiting) = match principal.sees_all() {
            true => (admission.active(), admission.waiting()),
            // Whose turn it is, is not kept by workspace.
            false => (scenes.iter().map(|scene| scene.activity.active()).sum(), 0),
        };
        v1::Counts {
            calls_finished: scenes.iter().map(|scene| scene.activity.finished()).sum(),
            calls_active: saturate(active),
            calls_waiting: saturate(waiting),
            runs_active: self.sandboxes.lent(seen),
            sandboxes_warm: self.sandboxes.warm(seen),
            sandboxes_quarantined: self.sandboxes.quarantined(seen),
            spans_lost: match principal.sees_all() {
                true => self.pipeline.telemetry.spans_lost(),
                false => 0,
            },
        }
    }
}

fn caller(principal: &Principal) -> v1::Caller {
    let role = match principal.role() {
        Role::Read => v1::Role::Read,
        Role::Invoke => v1::Role::Invoke,
        Role::Admin => v1::Role::Admin,
    };
    v1::Caller { name: principal.name().to_owned(), role: role.into() }
}

fn saturate(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
