//! The environment that the daemon runs in (host or container), as far as it limits the isolation
//! level, and the remedy for operators.

use std::{fmt, fs, path::Path};

use caps::{CapSet, Capability};
use rustix::process::geteuid;

use super::{masked_proc, stage::Stage};

#[derive(Debug, Clone, Default)]
pub(crate) struct HostEnvironment {
    engine: ContainerEngine,
    uid: u32,
    can_set_user: bool,
    can_mount: bool,
    has_seccomp_filter: bool,
    has_masked_proc: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ContainerEngine {
    /// No container engine, or one without a known mark.
    #[default]
    None,
    Docker,
    Podman,
    Kubernetes,
}

impl HostEnvironment {
    /// Inspects this process. Called before the daemon drops privileges and is confined.
    pub(crate) fn detect() -> Self {
        let effective = caps::read(None, CapSet::Effective).unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());

        let engine = if is_set("KUBERNETES_SERVICE_HOST") {
            ContainerEngine::Kubernetes
        } else if Path::new("/run/.containerenv").exists() {
            ContainerEngine::Podman
        } else if Path::new("/.dockerenv").exists() {
            ContainerEngine::Docker
        } else {
            ContainerEngine::None
        };

        Self {
            engine,
            uid: geteuid().as_raw(),
            can_set_user: effective.contains(&Capability::CAP_SETUID)
                && effective.contains(&Capability::CAP_SETGID),
            can_mount: effective.contains(&Capability::CAP_SYS_ADMIN),
            has_seccomp_filter: status.lines().any(|line| line == "Seccomp:\t2"),
            has_masked_proc: masked_proc::is_masked().unwrap_or(false),
        }
    }

    /// Whether no restriction of a container prevents the highest level.
    pub(super) fn is_unrestricted(&self) -> bool {
        !self.has_seccomp_filter && !self.has_masked_proc
    }

    /// How to make commands run, or how to get a higher level: an option of the container if its
    /// engine is known, else the remedy of the failed step.
    pub(super) fn remedy(&self, stage: Stage) -> String {
        match (stage, self.engine) {
            (Stage::MapOwner, _) => {
                "--chown-workspace (gives root's files in the workspace to the user of commands), or a volume for the workspace".to_owned()
            }
            (Stage::WorkspaceOwner, _) if self.is_unrestricted() => {
                "--chown-workspace (gives root's files in the workspace to the user of commands)".to_owned()
            }
            (Stage::WorkspaceOwner, _) => {
                "--chown-workspace --minimum-level L1 (gives root's files in the workspace to the user of commands)".to_owned()
            }
            (Stage::Identity, ContainerEngine::Docker | ContainerEngine::Podman) => {
                "the container's option --user 1000:1000, the owner of the workspace (or --cap-add SETUID,SETGID,CHOWN,KILL and --chown-workspace), and --minimum-level L1".to_owned()
            }
            (Stage::Identity, ContainerEngine::Kubernetes) => {
                "securityContext.runAsUser: 1000, the owner of the workspace, and --minimum-level L1".to_owned()
            }
            (_, ContainerEngine::Docker | ContainerEngine::Podman) if self.has_seccomp_filter || self.has_masked_proc => {
                let is_proc_step = matches!(stage, Stage::MountTemplateProc | Stage::MountProc | Stage::MaskProc);
                let mut options = Vec::new();
                if self.has_seccomp_filter && !is_proc_step {
                    options.push("--security-opt seccomp=unconfined");
                }
                if self.has_masked_proc {
                    options.push(match self.engine {
                        ContainerEngine::Docker => "--security-opt systempaths=unconfined",
                        ContainerEngine::Podman | ContainerEngine::Kubernetes | ContainerEngine::None => "--security-opt unmask=ALL",
                    });
                }
                format!("the container's options {}", options.join(" "))
            }
            (_, ContainerEngine::Kubernetes) if self.has_seccomp_filter || self.has_masked_proc => {
                "hostUsers: false, procMount: Unmasked and a seccompProfile that allows namespaces and mounts, in the pod's securityContext".to_owned()
            }
            (stage, _) => stage.remedy().to_owned(),
        }
    }
}

impl fmt::Display for HostEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.engine {
            ContainerEngine::None => "host",
            ContainerEngine::Docker => "Docker container",
            ContainerEngine::Podman => "Podman container",
            ContainerEngine::Kubernetes => "pod",
        })?;

        match (self.uid, self.can_mount, self.can_set_user) {
            (0, true, _) => f.write_str(", root with CAP_SYS_ADMIN")?,
            (0, false, true) => f.write_str(", root without CAP_SYS_ADMIN")?,
            (0, false, false) => f.write_str(", root without CAP_SETUID")?,
            (uid, ..) => write!(f, ", user {uid}")?,
        }

        if self.has_seccomp_filter {
            f.write_str(", seccomp profile")?;
        }
        if self.has_masked_proc {
            f.write_str(", masked /proc")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_names_options_of_the_container_engine() {
        let docker = HostEnvironment {
            engine: ContainerEngine::Docker,
            can_set_user: true,
            has_seccomp_filter: true,
            has_masked_proc: true,
            ..HostEnvironment::default()
        };
        let podman = HostEnvironment { engine: ContainerEngine::Podman, ..docker.clone() };
        let open =
            HostEnvironment { has_seccomp_filter: false, has_masked_proc: false, ..podman.clone() };
        let pod =
            HostEnvironment { engine: ContainerEngine::Kubernetes, uid: 1000, ..docker.clone() };
        let host = HostEnvironment { engine: ContainerEngine::None, ..open.clone() };

        for (found, stage, expected) in [
            (
                &docker,
                Stage::UserNamespace,
                "seccomp=unconfined --security-opt systempaths=unconfined",
            ),
            (&podman, Stage::MountTemplateProc, "options --security-opt unmask=ALL"),
            (&podman, Stage::WorkspaceOwner, "--chown-workspace --minimum-level L1"),
            (&open, Stage::WorkspaceOwner, "--chown-workspace (gives"),
            (&open, Stage::MapOwner, "--chown-workspace"),
            (&docker, Stage::Identity, "--user 1000:1000"),
            (&pod, Stage::UserNamespace, "procMount: Unmasked"),
            (&host, Stage::UserNamespace, "max_user_namespaces"),
        ] {
            let remedy = found.remedy(stage);
            assert!(remedy.contains(expected), "{found} {stage:?}: {remedy}");
        }

        assert_eq!(
            docker.to_string(),
            "Docker container, root without CAP_SYS_ADMIN, seccomp profile, masked /proc"
        );
        assert_eq!(pod.to_string(), "pod, user 1000, seccomp profile, masked /proc");
    }
}
